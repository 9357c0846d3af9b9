"""KV caches that were moved between replicas: the time of each, and its share of the first token.

Mooncake's tables of one prefill and one decode replica of eight GPUs over RoCE. A cache is
predicted from the others of its framework's; then the whole run is, one prompt at a time, on the
GPU and at the line's rate of the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np

from lab.claims.lines import answered, error_line, percent_off
from lab.fits.networks.kv_transfer import frameworks, left_out, log_error, of, transfers
from lab.tables.modern.kv_transfer import TRANSFERS, moved
from lab.tables.rows import Record
from simulators.core.contract import Check
from simulators.serving.point import RDMA, ServingPoint
from simulators.serving.pools.link import Transfers
from simulators.serving.simulator import simulate

NEEDS = (TRANSFERS,)

LIMIT = 7.0
LONG = 4096
"""Prompts from here on: of shorter ones the server before the engine takes most of the time."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors of transfers, of each and of a framework left out, and of shares of TTFT."""
    rows = list(moved(reference))
    alone = list(left_out(rows))
    yield _line("KV transfer, each cache by the others of its framework", alone, LIMIT)
    names = frameworks(rows)
    others = {name: transfers([row for row in rows if row.framework != name]) for name in names}
    apart = [(row, others[name]) for name in names for row in of(rows, name)]
    yield _line("KV transfer, each framework by the other", apart, None)
    long = [(row, known) for row, known in alone if row.prompt_tokens >= LONG]
    found = answered("KV transfer, share of TTFT", long, lambda pair: share_of_ttft(*pair))
    yield from found.lines
    ours = np.array(found.answers)
    theirs = np.array([row.transfer_s / row.ttft_s for row, _ in found.rows])
    each = ", ".join(
        f"{100.0 * mine:.1f} of {100.0 * one:.1f} % ({row.model}, {row.prompt_tokens:,})"
        for mine, one, (row, _) in zip(ours, theirs, found.rows, strict=True)
    )
    off = percent_off(ours, theirs)
    yield error_line("KV transfer, share of TTFT of long prompts", [off], note=each)


def _line(name: str, known: list[tuple[Record, Transfers]], limit: float | None) -> Check:
    off = np.array([100.0 * (exp(log_error(row, one)) - 1.0) for row, one in known])
    return error_line(name, [off], limit, f"worst {np.abs(off).max():.1f} %")


def share_of_ttft(row: Record, known: Transfers) -> float:
    """Return the transfer's share of the time to the first token of one prompt alone.

    Raises:
        Infeasible: the model does not fit.
    """
    point = ServingPoint(
        row.model,
        row.gpu,
        tp=row.tp,
        prefill_gpus=row.tp,
        decode_gpus=row.tp,
        kv_link=RDMA,
        kv_link_bytes_per_s=known.share * row.line_bytes_per_s,
        dtype="bf16",
        kv_dtype="bf16",
        scheduler="sglang" if row.framework == "sglang" else "vllm_v1",
        chunk_size=8192,
        prompt_tokens=row.prompt_tokens,
        output_tokens=2,
        requests=1,
        warmup=0,
    )
    found = simulate(replace(point, window="whole"))
    assert found.kv_transfer_share is not None
    return found.kv_transfer_share
