"""Whole fp32 models against measured ones, beside a roofline and what others predicted, by board.

Boards that stand for new ones are also judged from the data sheet alone, which is what the neural
peer knew of them. Constants of the framework are fitted to all graphs but the one that is judged.
Then the same with one effect left out, over cases nothing else is wrong with, and training steps on
four GPUs by how they are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.claims.composition._fp32_models import (
    PEER,
    Evidence,
    Judged,
    error_line,
    evidence_of,
    peer_errors,
    peers_of,
)
from lab.claims.lines import mean_error, within
from lab.fits.graphs import ROWS, Fitted
from lab.tables.graphs import TABLE, Case, price_graph
from simulators.catalog.cluster import AUTO, cluster_for
from simulators.collectives.price import collective_time
from simulators.core.contract import Check
from simulators.graphs.timeline import Framework
from simulators.workload.graphs.footprint import kept_bytes
from simulators.workload.precision import BYTES

NEEDS = (TABLE,)
SEEN = ("v100_pcie", "p100_pcie", "a100_pcie_40gb")
NEW_LIMITS = {"h100_sxm": 3.0, "a100_pcie_80gb": 7.0}
SEEN_LIMIT, CAPPED_LIMIT, AMD_LIMIT, FUSED_LIMIT = 4.5, 10.0, 10.0, 6.0
PAID = "fresh allocations paid where the run shows them"
AMD_ALLOCATING = (("gpt2-large", 4), ("gpt3-xl-3072", 1))
"""Training rows of AMD boards that the data set itself names as slowed by their allocator."""

PARALLEL_LIMITS = {"TP4": 8.0, "DP4": 8.0, "PP4": 8.0}
PARALLEL_BOARD = "h100_sxm"
"""Whose rows of all cuts are stated together."""
LEFT_OUT: dict[str, dict[str, Any]] = {
    "with all effects": {},
    "without launches and waits of the host": {"launch_s": {}},
    "without waits of the host": {"synchronises": False},
    "without orders of backward products": {"gradient": {}},
}
"""By what is left out: the framework's numbers that say so."""


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield lines for boards, for effects left out and for cuts over four GPUs."""
    evidence = evidence_of(reference)
    yield from _boards(evidence)
    yield from _effects(evidence)
    yield from _parallel(evidence)


def _boards(evidence: Evidence) -> Iterator[Check]:
    """Yield a line for each board or group of boards that has a limit, and those that have none."""
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
    inside = np.array([j.is_inside for j in (*seen, *capped, *usual, *fused)], bool)
    title = "composition/graphs: models within their 90 % interval"
    note = "calibrated boards; kernels of one kind err together"
    yield from within(title, [inside], note)


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


def _effects(evidence: Evidence) -> Iterator[Check]:
    """Yield a line for each effect, then models fused by a compiler priced as if they were not."""
    rows = [row for row in evidence.rows if not row.is_allocating and not is_slow(row.case)]
    for what, change in LEFT_OUT.items():
        errors: dict[str, list[float]] = {}
        for row in rows:
            where = f"{row.case.gpu.name} {'training' if row.case.is_training else 'inference'}"
            framework = replace(evidence.framework(row.case), **change)
            errors.setdefault(where, []).append(_error(row, framework))
        note = ", ".join(f"{name} {100 * np.mean(e):.1f}" for name, e in sorted(errors.items()))
        together = [error for group in errors.values() for error in group]
        yield mean_error(f"composition/graphs {what}", together, note=note)
    fused = [case for case in evidence.cases if case.is_fused]
    plain = [Fitted(c, replace(c, is_fused=False).price(evidence.reference)) for c in fused]
    apart = [_error(row, evidence.framework(row.case)) for row in plain]
    yield mean_error("composition/graphs fused by a compiler, without fusion", apart)


def _error(row: Fitted, framework: Framework) -> float:
    return abs(row.total_s(framework) / row.case.total_s - 1.0)


def _parallel(evidence: Evidence) -> Iterator[Check]:
    """Yield the mean error of each cut, then of one board's rows of all cuts."""
    cut = [case for case in evidence.cases if case.parallelism in PARALLEL_LIMITS]
    found = [
        (case, float(np.mean(_parallel_s(evidence, case))) / case.total_s - 1.0) for case in cut
    ]
    named = [(how, [one for one in found if one[0].parallelism == how]) for how in PARALLEL_LIMITS]
    named.append((PARALLEL_BOARD, [one for one in found if one[0].gpu.name == PARALLEL_BOARD]))
    for name, rows in named:
        cases, errors = [case for case, _ in rows], [error for _, error in rows]
        note = ", ".join(
            [f"bias {100 * np.mean(errors):+.1f}", *peer_errors(cases)] if cases else []
        )
        peer = peers_of(cases).get(PEER)
        title = f"composition/graphs: {name}, four GPUs"
        limit = PARALLEL_LIMITS.get(name, max(PARALLEL_LIMITS.values()))
        yield mean_error(title, errors, limit, note, peer and peer.error)


def _parallel_s(evidence: Evidence, case: Case) -> list[float]:
    """Return the seconds of a training step on four GPUs, one for each level of information.

    Tensor ranks sum activations twice a layer either way, and once after the embedding. Data ranks
    sum gradients while the backward pass runs. A pipeline of one microbatch runs stage by stage.
    """
    cut, ranks = case.parallelism, case.gpus
    local = case.batch // ranks if cut == "DP4" else case.batch
    graph = case.graph(evidence.reference, batch=local, tp=ranks if cut == "TP4" else 1)
    framework = evidence.framework(case)
    cluster = cluster_for(AUTO, case.gpu)
    layers = max(node.repeat for node in graph.nodes)
    hidden = graph.nodes[-1].shape[-1] if cut == "DP4" else _hidden(case, evidence)
    stream_bytes = float(local * case.length * hidden * BYTES["fp32"])

    def message_s(kind: str, size_bytes: float) -> float:
        took = collective_time(kind, size_bytes, ranks=ranks, gpu=case.gpu, cluster=cluster)
        return float(took.time_s)

    found = []
    for level in evidence.levels(case.gpu):
        priced = price_graph(graph, case.gpu, dtype="fp32", training=True, level=level)
        spans = Fitted(case, priced).spans(framework)
        busy_s = sum(part.latency_s for part in spans.values())
        if cut == "TP4":
            busy_s += (4 * layers + 1) * message_s("all_reduce", stream_bytes)
        elif cut == "DP4":
            gradients_s = message_s("all_reduce", graph.parameters * BYTES["fp32"])
            busy_s += max(0.0, gradients_s - spans["backward"].latency_s)
        else:
            busy_s += 2 * (ranks - 1) * message_s("send_recv", stream_bytes)
        found.append(busy_s)
    return found


def _hidden(case: Case, evidence: Evidence) -> int:
    """Return the width of the residual stream."""
    first = next(n for n in case.graph(evidence.reference, batch=1).nodes if n.kind == "embedding")
    return first.shape[-1]
