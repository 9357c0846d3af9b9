"""KV caches moved from a prefill to a decode replica, as Mooncake published them."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from pathlib import Path

from lab.tables.catalog_names import gpu_name, model_name
from lab.tables.records import file_of, records
from lab.tables.rows import Record
from simulators.catalog.model import load_model
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism

TRANSFERS = file_of("kv_transfers")

BLOCK = 16
"""Tokens of a KV block: whole blocks are transferred."""


def moved(reference: Path) -> Iterator[Record]:
    """Yield KV transfers.

    Further columns: `line_bytes_per_s` of one GPU, and `line_s`, in which the line transfers the
    share of one GPU.
    """
    for row in records(reference, "kv_transfers"):
        model = load_model(model_name(row.model.removesuffix("-bf16")))
        share = kv_bytes_per_token(model, Parallelism(tp=row.tp), "bf16")
        line = row.line / row.tp
        tokens = BLOCK * ceil(row.prompt_tokens / BLOCK)
        derived = {
            "gpu": gpu_name(row.gpu.partition("-")[0]),
            "model": model.name,
            "framework": row.engine.partition("-")[0],
            "layers": model.layers,
            "line_s": share * tokens / line,
            "line_bytes_per_s": line,
        }
        yield Record(row | derived)
