"""Whole fp32 models against measured ones, beside a roofline and what others predicted, by board.

Boards that stand for new ones are also judged from the data sheet alone, which is what the neural
peer knew of them. Constants of the framework are fitted to all graphs but the one that is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.claims.composition._fp32_models import Evidence, Judged, error_line, evidence_of
from lab.claims.lines import at_most
from lab.fits.graphs import ROWS
from lab.tables.graphs import TABLE, Case
from simulators.core.contract import Check
from simulators.workload.graphs.footprint import kept_bytes

NEEDS = (TABLE,)
SEEN = ("v100_pcie", "p100_pcie", "a100_pcie_40gb")
NEW_LIMITS = {"h100_sxm": 3.0, "a100_pcie_80gb": 7.0}
SEEN_LIMIT, CAPPED_LIMIT, AMD_LIMIT, FUSED_LIMIT = 4.5, 10.0, 10.0, 6.0
PAID = "fresh allocations paid where the run shows them"
AMD_ALLOCATING = (("gpt2-large", 4), ("gpt3-xl-3072", 1))
"""Training rows of AMD boards that the data set itself names as slowed by their allocator."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield a line for each board or group of boards that has a limit, and those that have none."""
    evidence = evidence_of(reference)
    seen = evidence.chosen(lambda c: c.gpu.name in SEEN and not c.is_fused)
    capped = evidence.chosen(lambda c: c.gpu.name == "t4")
    amd = evidence.chosen(lambda c: c.gpu.vendor == "amd")
    slow = [j for j in amd if is_slow(j.fitted.case)]
    usual = [j for j in amd if j not in slow]
    fused = evidence.chosen(lambda c: c.is_fused)
    odd = evidence.chosen(lambda c: c.gpu.name == "p4")
    yield error_line("seen NVIDIA boards, unfused", seen, SEEN_LIMIT)
    for name in SEEN:
        yield error_line(f"{name}, unfused", [j for j in seen if j.fitted.case.gpu.name == name])
    for name, limit in NEW_LIMITS.items():
        yield from _new_board(evidence, name, limit)
    yield error_line("T4", capped, CAPPED_LIMIT)
    yield error_line("P4, kernels in another clock state", odd)
    yield error_line("MI210 and MI250 as MI210", usual, AMD_LIMIT)
    yield error_line("the same, rows slowed by their allocator", slow)
    yield error_line(f"the same rows, {PAID}", _with_allocations(evidence, slow))
    yield error_line("fused by a compiler", fused, FUSED_LIMIT)
    inside = [j.is_inside for j in (*seen, *capped, *usual, *fused)]
    title = "composition/graphs: models within their 90 % interval"
    note = "calibrated boards; kernels of one kind err together"
    share = 100.0 * float(np.mean(inside)) if inside else np.nan
    yield at_most(title, share, None, len(inside), note)


def is_slow(case: Case) -> bool:
    """Say whether the data set names a case as slowed by its allocator."""
    return case.is_training and (case.model, case.batch) in AMD_ALLOCATING


def _new_board(evidence: Evidence, name: str, limit: float) -> Iterator[Check]:
    """Yield the lines of a board that counts as new."""

    def is_mine(case: Case) -> bool:
        return case.gpu.name == name and not case.is_fused

    mine = evidence.chosen(is_mine)
    zero = [evidence.judge(case, ("zero_shot",)) for case in evidence.single(is_mine)]
    title = f"{name}, {ROWS} rows an operator"
    yield error_line(title, mine, limit)
    yield error_line(f"{name}, data sheet alone", zero)
    steady = [j for j in mine if not j.fitted.is_allocating]
    if len(steady) < len(mine):
        yield error_line(f"{title}, runs without fresh allocations", steady)
        yield error_line(f"{title}, {PAID}", _with_allocations(evidence, mine))


def _with_allocations(evidence: Evidence, judged: Sequence[Judged]) -> list[Judged]:
    """Return cases with the time of fresh memory added where a run shows that it took some.

    What a forward pass keeps is allocated at one rate, the median of the other graphs that show it.
    """
    kept = [kept_bytes(j.fitted.case.graph(evidence.reference), "fp32") for j in judged]
    seen = [
        (j.fitted.case.graph_name, (j.fitted.case.forward_s - j.forward_s) / held)
        for j, held in zip(judged, kept, strict=True)
        if j.fitted.is_allocating
    ]
    found = []
    for j, held in zip(judged, kept, strict=True):
        others = [rate for name, rate in seen if name != j.fitted.case.graph_name]
        more_s = held * float(np.median(others)) if j.fitted.is_allocating else 0.0
        ours_s = tuple(one + more_s for one in j.ours_s)
        found.append(replace(j, ours_s=ours_s, lo_s=j.lo_s + more_s, hi_s=j.hi_s + more_s))
    return found
