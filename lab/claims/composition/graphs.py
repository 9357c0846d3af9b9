"""How far whole fp32 models are from measured ones, beside a roofline and what others predicted.

Kernels come from their own calibrations: full where a board was measured at length; for boards that
stand for new ones from ten rows an operator (the mean of four draws), and from the data sheet
alone, which is also what the neural peer knew of them. Constants of the framework are fitted to
all graphs but the one that is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.fits.graphs import (
    NEW,
    ROWS,
    Fitted,
    few_shot_profile,
    fit,
    priced_cases,
)
from lab.tables.graph_profiles import FITTED, GPU, fit_paces, read_profiles
from lab.tables.graph_profiles import TABLE as PROFILES
from lab.tables.graphs import PEERS, TABLE, Case, read_cases
from lab.tables.kernels.fp32_kernels import read_rows
from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import Gpu
from simulators.collectives.protocols import price_collective
from simulators.core.contract import Check
from simulators.evidence.lookup import BEST
from simulators.graphs.timeline import Framework, price_graph
from simulators.kernels.price import roofline_s
from simulators.kernels.profile import Profile
from simulators.workload.graphs.footprint import kept_bytes
from simulators.workload.operators import BYTES, Collective

Floats = NDArray[np.float64]

SEEN = ("v100_pcie", "p100_pcie", "a100_pcie_40gb")
NEW_BARS = {"h100_sxm": 3.0, "a100_pcie_80gb": 7.0}
SEEN_BAR, CAPPED_BAR, AMD_BAR, FUSED_BAR, TENSOR_BAR = 4.5, 10.0, 10.0, 6.0, 8.0
DRAWS = 4
PAID = "fresh allocations paid where the run shows them"
AMD_ALLOCATING = (("gpt2-large", 4), ("gpt3-xl-3072", 1))
"""Training rows of AMD boards that the data set itself names as slowed by their allocator."""


@dataclass(frozen=True)
class Judged:
    """One measured case with predictions: ours, by draw, and those stored with it."""

    fitted: Fitted
    ours_s: tuple[float, ...]
    lo_s: float
    hi_s: float
    forward_s: float  # of it, the mean over draws
    roofline_s: float

    @property
    def errors(self) -> Floats:
        """Our relative errors, one per draw."""
        return np.array(self.ours_s) / self.fitted.case.total_s - 1.0

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies within our 90 % interval."""
        return self.lo_s <= self.fitted.case.total_s <= self.hi_s


class Evidence:
    """What whole models of the table are judged with: cases, constants, draws of few rows."""

    def __init__(self, reference: Path) -> None:
        self.reference = reference
        self.cases = read_cases(reference)
        self.rows = priced_cases(reference)
        self._left_out: dict[str, Framework] = {}
        self._profiles: dict[str, list[Profile]] = {}

    def framework(self, case: Case) -> Framework:
        """Return the constants fitted to all graphs but this one."""
        if case.graph_name not in self._left_out:
            others = [row for row in self.rows if row.case.graph_name != case.graph_name]
            self._left_out[case.graph_name] = fit(others)
        return self._left_out[case.graph_name]

    def draws(self, gpu: Gpu) -> list[Profile]:
        """Return what ten rows an operator say of a board, draw by draw."""
        if gpu.name not in self._profiles:
            rows = read_rows(self.reference)[0]
            self._profiles[gpu.name] = [few_shot_profile(gpu, rows, s) for s in range(DRAWS)]
        return self._profiles[gpu.name]

    def judge(self, case: Case, levels: Sequence[str | Profile] = (BEST,)) -> Judged:
        """Return a case with its predictions, one for each level of information."""
        framework = self.framework(case)
        priced = [Fitted(case, case.price(self.reference, level)) for level in levels]
        spans = [list(one.spans(framework).values()) for one in priced]
        return Judged(
            fitted=priced[0],
            ours_s=tuple(sum(part.latency_s for part in parts) for parts in spans),
            lo_s=float(np.mean([sum(part.lo_s for part in parts) for parts in spans])),
            hi_s=float(np.mean([sum(part.hi_s for part in parts) for parts in spans])),
            forward_s=float(np.mean([parts[0].latency_s for parts in spans])),
            roofline_s=sum(
                launch.repeat * float(roofline_s(launch.kernel, case.gpu))
                for launch in priced[0].priced.launches
            ),
        )

    def chosen(self, wanted: Callable[[Case], bool]) -> list[Judged]:
        """Return judged cases of one GPU; new boards by their draws."""
        return [
            self.judge(case, self.draws(case.gpu) if case.gpu.name in NEW else (BEST,))
            for case in self.cases
            if case.parallelism == "none" and case.has_graph and wanted(case)
        ]


def checks(reference: Path) -> list[Check]:
    """Return a line for each board or group of boards that has a bar, and those that have none."""
    if not (reference / TABLE).is_file():
        return [Check("composition/graphs", None, unit="%", note=f"absent: {TABLE}")]
    evidence = Evidence(reference)
    seen = evidence.chosen(lambda c: c.gpu.name in SEEN and not c.is_fused)
    capped = evidence.chosen(lambda c: c.gpu.name == "t4")
    amd = evidence.chosen(lambda c: c.gpu.vendor == "amd")
    slow = [j for j in amd if _is_slow(j.fitted.case)]
    fused = evidence.chosen(lambda c: c.is_fused)
    return [
        _check("seen NVIDIA boards, unfused", seen, SEEN_BAR),
        *(_check(f"{n}, unfused", [j for j in seen if j.fitted.case.gpu.name == n]) for n in SEEN),
        *(line for name, bar in NEW_BARS.items() for line in _new_board(evidence, name, bar)),
        _check("T4", capped, CAPPED_BAR),
        _check("P4, kernels in another clock state", evidence.chosen(lambda c: c.gpu.name == "p4")),
        _check("MI210 and MI250 as MI210", [j for j in amd if j not in slow], AMD_BAR),
        _check("the same, rows slowed by their allocator", slow),
        _check(f"the same rows, {PAID}", _with_allocations(evidence, slow)),
        _check("fused by a compiler", fused, FUSED_BAR),
        *_parallel_checks(evidence),
        *_convolutional(reference),
        *_ablation(evidence),
        _coverage([*seen, *capped, *[j for j in amd if j not in slow], *fused]),
    ]


def _new_board(evidence: Evidence, name: str, bar: float) -> list[Check]:
    """Return the lines of a board that counts as new."""

    def is_mine(case: Case) -> bool:
        return case.gpu.name == name and not case.is_fused

    mine = evidence.chosen(is_mine)
    zero = [
        evidence.judge(case, ("zero_shot",))
        for case in evidence.cases
        if is_mine(case) and case.parallelism == "none" and case.has_graph
    ]
    title = f"{name}, {ROWS} rows an operator"
    lines = [_check(title, mine, bar), _check(f"{name}, data sheet alone", zero)]
    steady = [j for j in mine if not j.fitted.is_allocating]
    if len(steady) < len(mine):
        lines.append(_check(f"{title}, runs without fresh allocations", steady))
        lines.append(_check(f"{title}, {PAID}", _with_allocations(evidence, mine)))
    return lines


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


def _is_slow(case: Case) -> bool:
    return case.is_training and (case.model, case.batch) in AMD_ALLOCATING


def _check(name: str, judged: Sequence[Judged], limit: float | None = None) -> Check:
    """Return our error over some cases, with the roofline's and the peers' beside it."""
    title = f"composition/graphs: {name}"
    if not judged:
        return Check(title, None, unit="%", note="no rows")
    cases = [j.fitted.case for j in judged]
    errors = np.concatenate([j.errors for j in judged])
    measured = np.array([case.total_s for case in cases])
    plain = np.array([j.roofline_s for j in judged]) / measured - 1.0
    value = 100.0 * float(np.mean(np.abs(errors)))
    worst = max(judged, key=lambda j: float(np.abs(j.errors).mean()))
    parts = [
        f"bias {100 * errors.mean():+.1f}",
        f"worst {100 * worst.errors.mean():+.0f} ({worst.fitted.case.graph_name})",
        f"{sum(j.is_inside for j in judged)} of {len(judged)} in their 90 % interval",
        f"our roofline {100 * np.abs(plain).mean():.1f}",
        *_peers(cases),
    ]
    ok = None if limit is None else value <= limit
    return Check(title, round(value, 2), "%", limit, ok, rows=len(cases), note=", ".join(parts))


def _peers(cases: Sequence[Case]) -> Iterable[str]:
    """Yield the error of each peer on the cases it has an answer for."""
    for peer in PEERS:
        ratios = [c.peers_s[peer] / c.total_s - 1.0 for c in cases if peer in c.peers_s]
        if ratios:
            stored = "stored roofline" if peer == "roofline" else peer
            yield f"{stored} {100 * np.mean(np.abs(ratios)):.1f} (n = {len(ratios)})"


def _coverage(judged: Sequence[Judged]) -> Check:
    """Return how many measured models lie within their 90 % interval."""
    inside = [j.is_inside for j in judged]
    return Check(
        "composition/graphs: models within their 90 % interval", 100.0 * float(np.mean(inside)),
        "%", rows=len(inside), note="calibrated boards; kernels of one kind err together",
    )  # fmt: skip


def _convolutional(reference: Path) -> list[Check]:
    """Return how far sums of kernels of convolutional networks are off; none was fitted as such."""
    title = f"composition/graphs: convolutional networks, kernels on {GPU}"
    if not (reference / PROFILES).is_file():
        return [Check(title, None, unit="%", note=f"absent: {PROFILES}")]
    profiles = read_profiles(reference)
    framework = Framework(pace=fit_paces(profiles))
    errors = {
        p.name: p.predicted_s(framework) / p.measured_s - 1.0 for p in profiles if p.name != FITTED
    }
    value = round(100.0 * float(np.mean(np.abs(list(errors.values())))), 2)
    note = ", ".join(f"{name} {100 * error:+.0f}" for name, error in errors.items())
    return [Check(title, value, "%", rows=len(errors), note=note)]


def _ablation(evidence: Evidence) -> list[Check]:
    """Return the error with one effect left out, over all cases nothing else is wrong with."""
    rows = [row for row in evidence.rows if not row.is_allocating and not _is_slow(row.case)]
    left_out: dict[str, dict[str, Any]] = {
        "with all effects": {},
        "without launches and waits of the host": {"launch_s": {}},
        "without waits of the host": {"synchronises": False},
        "without orders of backward products": {"gradient": {}},
    }
    lines = []
    for what, change in left_out.items():
        errors: dict[str, list[float]] = {}
        for row in rows:
            total_s = row.total_s(replace(evidence.framework(row.case), **change))
            where = f"{row.case.gpu.name} {'training' if row.case.is_training else 'inference'}"
            errors.setdefault(where, []).append(abs(total_s / row.case.total_s - 1.0))
        every = [error for group in errors.values() for error in group]
        note = ", ".join(f"{name} {100 * np.mean(e):.1f}" for name, e in sorted(errors.items()))
        title = f"composition/graphs {what}"
        value = round(100.0 * float(np.mean(every)), 2)
        lines.append(Check(title, value, "%", rows=len(every), note=note))
    fused = [case for case in evidence.cases if case.is_fused]
    plain = [Fitted(c, replace(c, is_fused=False).price(evidence.reference)) for c in fused]
    apart = [
        abs(row.total_s(evidence.framework(row.case)) / row.case.total_s - 1.0) for row in plain
    ]
    title = "composition/graphs fused by a compiler, without fusion"
    return [*lines, Check(title, round(100.0 * float(np.mean(apart)), 2), "%", rows=len(apart))]


def _parallel_checks(evidence: Evidence) -> list[Check]:
    """Return how far models on four GPUs are off, by how they are cut."""
    lines = []
    for how, limit in (("TP4", TENSOR_BAR), ("DP4", None), ("PP4", None)):
        cases = [c for c in evidence.cases if c.parallelism == how]
        errors = [np.mean(_parallel_s(evidence, c)) / c.total_s - 1.0 for c in cases]
        value = 100.0 * float(np.mean(np.abs(errors)))
        note = ", ".join([f"bias {100 * np.mean(errors):+.1f}", *_peers(cases)])
        ok = None if limit is None else value <= limit
        title = f"composition/graphs: {how}, four GPUs"
        lines.append(Check(title, round(value, 2), "%", limit, ok, rows=len(cases), note=note))
    return lines


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
        asked = Collective(name=cut, kind=kind, size_bytes=size_bytes, ranks=ranks)
        seconds, _ = price_collective(asked, cluster, case.gpu, span=ranks)
        return float(np.asarray(seconds))

    found = []
    for level in evidence.draws(case.gpu) if case.gpu.name in NEW else [BEST]:
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
