"""Passes of LLaMA models alone on a share of the SMs, as MuxServe's authors timed them under MPS.

Their file states no GPU; their paper has A100s of 80 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.tables.rows import Floats, column, numbers, read_table

PROFILE = "colocation/muxserve_mps_latency.parquet"
BOARD = "a100_sxm"
WHOLE = 100.0
KEYS = ("batch", "seq_len")


@dataclass(frozen=True)
class Slowdowns:
    """Passes of one model on some GPUs: their sizes, and how much longer a share makes them.

    NaN where one of the two was not timed.
    """

    model: str
    gpus: int
    share: Floats
    batch: Floats
    tokens: Floats
    prefill: Floats
    decode: Floats


def slowdowns(reference: Path) -> Iterator[Slowdowns]:
    """Yield the rows of each model and number of GPUs that were also timed on all SMs."""
    table = read_table(reference / PROFILE)
    models = np.array(table["model"].to_pylist())
    gpus = column(table, "n_gpus")
    columns = numbers(table, (*KEYS, "mps_pct", "prefill_ms", "decode_ms"))
    for model, count in sorted(set(zip(models.tolist(), gpus.tolist(), strict=True))):
        mine = (models == model) & (gpus == count)
        rows = {name: values[mine] for name, values in columns.items()}
        sizes = list(zip(*(rows[key].tolist() for key in KEYS), strict=True))
        whole = {size: i for i, size in enumerate(sizes) if rows["mps_pct"][i] == WHOLE}
        kept = [i for i, s in enumerate(sizes) if s in whole and rows["mps_pct"][i] != WHOLE]
        at = np.array([whole[sizes[i]] for i in kept])
        yield Slowdowns(
            model=model,
            gpus=int(count),
            share=rows["mps_pct"][kept] / WHOLE,
            batch=rows["batch"][kept],
            tokens=rows["seq_len"][kept],
            prefill=rows["prefill_ms"][kept] / rows["prefill_ms"][at],
            decode=rows["decode_ms"][kept] / rows["decode_ms"][at],
        )
