"""Claims about operators of recent models, by GPU: recurrent states and sparse attention.

Rows are held-out shapes. `predicted` is the product's answer, `elsewhere` its answer as if the GPU
had no measurements: by the constants of other GPUs and its own data sheet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lab.claims.claim import columns
from lab.claims.kernels import held_out, shipped_price
from lab.fits.methods import grouped
from lab.tables import blocks as timed_blocks
from lab.tables import kernels as tables
from lab.tables.operators import indexers
from lab.tables.operators import received_experts as received
from lab.tables.operators.hyper_connections import read_mixing_rows
from lab.tables.rows import Rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.lookup import LEVELS
from simulators.kernels.families.attention import LISTED
from simulators.kernels.families.experts import CONTIGUOUS, MASKED
from simulators.kernels.price import price
from simulators.kernels.tiling import four_norm

NAMES = {
    "gdn": "gated delta rule",
    "mamba2": "Mamba-2 convolutions",
    "kda": "Kimi delta attention",
    "mixing": "hyper-connections",
    "index_scores_prefill": "indexer scores of prompts",
    "index_scores_decode": "indexer scores of decodes",
    "index_choice": "choice of keys",
    MASKED: "experts after DeepEP, decodes",
    CONTIGUOUS: "experts after DeepEP, prompts",
    f"{LISTED}_576": "attention to lists of keys",
    f"{LISTED}_512": "attention to lists of keys",
}
"""Operators by table, rule or kernel."""


MANY = 4.0
"""Rows of an expert of which nearly all drawn tokens find one."""


def operators(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out shapes of states, hyper-connections and sparse attention, by GPU."""
    for gpu in dict.fromkeys((*tables.STATES.gpus, *tables.AUXILIARY.gpus)):
        timed = [p for p in tables.read_auxiliary_rows(reference, gpu) if tables.is_state(p.kernel)]
        for part in held_out([*timed, *tables.read_state_rows(reference, gpu)]):
            yield answered(part, NAMES[table_of(part)])
        for part in held_out(read_mixing_rows(reference, gpu)):
            yield answered(part, NAMES["mixing"])
    for gpu in indexers.FACTS.gpus:
        lists = indexers.read_index_rows(reference, gpu), indexers.read_list_rows(reference, gpu)
        for part in held_out(itertools.chain(*lists)):
            yield answered(part, NAMES[part.kernel])
    yield from received_experts(reference)


def received_experts(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out layers of experts after DeepEP's exchanges, by GPU and kernel.

    The benchmark spreads rows evenly. With `MANY` rows an expert, so do drawn tokens, about.
    """
    for gpu in received.GPUS:
        for part in held_out(received.read_received_experts(reference, gpu)):
            sizes = part.operator[0]
            part = part.where(sizes.rows >= MANY * sizes.experts)
            for mine, products in received.layers_of(part):
                sheet, rows = load_gpu(gpu), part.where(mine)
                own = [price(one, sheet, framework=part.framework) for one in products]
                other = [price(one, sheet, LEVELS[0], part.framework) for one in products]
                yield columns(
                    predicted=sum(one.latency_s for one in own),
                    elsewhere=sum(one.latency_s for one in other),
                    measured=rows.seconds,
                    lo=sum(one.lo_s for one in own),
                    hi=sum(one.hi_s for one in own),
                    gpu=gpu,
                    operator=NAMES[part.kernel],
                    kernel=part.name,
                    is_own=True,
                )


def answered(part: Rows, operator: str) -> pl.DataFrame:
    """Return measured seconds, the product's answer, and its answer without the GPU's own rows."""
    answer = shipped_price(part)
    other = price(part.operator, load_gpu(part.gpu), LEVELS[0], part.framework)
    return columns(
        predicted=answer.latency_s,
        elsewhere=other.latency_s,
        measured=part.seconds,
        lo=answer.lo_s,
        hi=answer.hi_s,
        gpu=part.gpu,
        operator=operator,
        kernel=part.name,
        is_own=answer.calibrated,
    )


def table_of(part: Rows) -> str:
    """Return the table that rows of states come from."""
    return next(
        (table for table, rule in tables.AUXILIARY.rules.items() if rule == part.dtype), "gdn"
    )


def blocks(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out attention blocks: the sum of their kernels, and with the host's time.

    Kernels have gaps between them, and small blocks wait for the host, which launches ten to twenty
    kernels: two numbers per kind of block, phase, path, engine and GPU, fitted to the other half of
    the shapes, `predicted = ((kernels + gap)^4 + host^4)^(1/4)`. `kernels` is the sum alone.
    `elsewhere` has kernels by the constants of other GPUs, and both numbers fitted to other GPUs;
    `has_elsewhere` is false where no other GPU ran the block on this path.
    """
    read = (timed_blocks.read_blocks(reference, gpu) for gpu in timed_blocks.FACTS.gpus)
    parts = itertools.chain.from_iterable(read)
    for (kind, phase, _path, framework), same in grouped(parts, path_of).items():
        by_gpu = {gpu: _Blocks(found) for gpu, found in grouped(same, lambda b: b.gpu).items()}
        for gpu, found in by_gpu.items():
            others = [other for name, other in by_gpu.items() if name != gpu]
            aside, answers = found.held_out, [(found.kernels, [found]), (found.elsewhere, others)]
            predicted, elsewhere = (
                four_norm(kernels + gap_s, host_s)[aside]
                for kernels, seen in answers
                for gap_s, host_s in [fitted_waits(seen)]
            )
            yield columns(
                predicted=predicted,
                elsewhere=elsewhere,
                has_elsewhere=bool(others),
                kernels=found.kernels[aside],
                measured=found.seconds[aside],
                gpu=gpu,
                block=kind,
                phase=phase,
                framework=framework,
            )


def path_of(block: timed_blocks.TimedBlock) -> tuple[str, str, str, str]:
    """Return what the gaps and the host's time of a block are fitted by, on each GPU."""
    return block.kind, block.phase, block.path, block.framework


class _Blocks:
    """The blocks of a path on one GPU; columns have an entry per row."""

    def __init__(self, parts: Sequence[timed_blocks.TimedBlock]) -> None:
        self.kernels = np.concatenate([timed_blocks.kernels_s(part) for part in parts])
        self.elsewhere = np.concatenate([timed_blocks.kernels_s(part, LEVELS[0]) for part in parts])
        self.seconds = np.concatenate([part.seconds for part in parts])
        self.held_out = np.concatenate([part.held_out for part in parts])


def fitted_waits(found: Sequence[_Blocks]) -> tuple[float, float]:
    """Return gap and host's time with the least mean error of logarithms, on a grid."""
    if all(one.held_out.all() for one in found):
        return 0.0, 0.0
    kernels = np.concatenate([one.kernels[~one.held_out] for one in found])
    seconds = np.concatenate([one.seconds[~one.held_out] for one in found])
    hosts, gaps = (
        np.concatenate([[0.0], 1e-5 * 1.05 ** np.arange(120.0)]),
        np.arange(0.0, 61e-6, 4e-6),
    )
    waits = [(gap, host) for gap in gaps.tolist() for host in hosts.tolist()]
    errors = [np.mean(np.abs(np.log(four_norm(kernels + g, h) / seconds))) for g, h in waits]
    return waits[int(np.argmin(errors))]
