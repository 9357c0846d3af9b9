"""Whole fp32 models with our predictions: constants fitted to all other graphs, draws of few rows.

Kernels come from their own calibrations: full where a board was measured at length; for boards that
stand for new ones from ten rows an operator, in four draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lab.claims.lines import at_most, mean_error, percent_off
from lab.fits.graphs import NEW, Fitted, few_shot_profile, fit_without, priced_cases
from lab.tables.graphs import PEERS, Case, read_cases
from lab.tables.kernels.fp32_kernels import read_rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.evidence.lookup import BEST
from simulators.graphs.timeline import Framework
from simulators.kernels.price import roofline_s
from simulators.kernels.profile import Profile

DRAWS = 4
PEER = "neusight"
"""Whose errors stand beside ours; those of others are in the notes."""


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
    """Cases of the table, and what judges them: constants, draws of few rows."""

    def __init__(self, reference: Path) -> None:
        self.reference = reference
        self.cases = read_cases(reference)
        self.rows = priced_cases(reference)
        self.draws = functools.cache(self._draws)
        self._without = functools.cache(functools.partial(fit_without, self.rows))

    def framework(self, case: Case) -> Framework:
        """Return the constants fitted to all graphs but this one."""
        return self._without(case.graph_name)

    def _draws(self, gpu: str) -> list[Profile]:
        """Return what ten rows an operator say of a board, draw by draw."""
        rows, board = read_rows(self.reference)[0], load_gpu(gpu)
        return [few_shot_profile(board, rows, seed) for seed in range(DRAWS)]

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

    def levels(self, gpu: Gpu) -> Sequence[str | Profile]:
        """Return what is known of a board's kernels: of a new one, by draw."""
        return self.draws(gpu.name) if gpu.name in NEW else (BEST,)

    def chosen(self, wanted: Callable[[Case], bool]) -> list[Judged]:
        """Return judged cases of one GPU."""
        return [self.judge(case, self.levels(case.gpu)) for case in self.single(wanted)]

    def single(self, wanted: Callable[[Case], bool]) -> Iterator[Case]:
        """Yield cases of one GPU whose graph is known."""
        for case in self.cases:
            if case.parallelism == "none" and case.has_graph and wanted(case):
                yield case


@functools.lru_cache(maxsize=1)
def evidence_of(reference: Path) -> Evidence:
    """Return what judges the models of a reference folder, gathered once for all claims."""
    return Evidence(reference)


def error_line(name: str, judged: Sequence[Judged], limit: float | None = None) -> Check:
    """Return our error over some cases, with the roofline's and the peers' beside it."""
    title = f"composition/graphs: {name}"
    if not judged:
        return mean_error(title, [])
    cases = [j.fitted.case for j in judged]
    errors = np.concatenate([j.errors for j in judged])
    measured_s = np.array([case.total_s for case in cases])
    plain = percent_off(np.array([j.roofline_s for j in judged]), measured_s)
    worst = max(judged, key=lambda j: float(np.abs(j.errors).mean()))
    parts = [
        f"bias {100 * errors.mean():+.1f}",
        f"worst {100 * worst.errors.mean():+.0f} ({worst.fitted.case.graph_name})",
        f"{sum(j.is_inside for j in judged)} of {len(judged)} in their 90 % interval",
        f"our roofline {np.abs(plain).mean():.1f}",
        *peer_errors(cases),
    ]
    value = round(100.0 * float(np.mean(np.abs(errors))), 2)  # over draws, too
    peer = peers_of(cases).get(PEER)
    return at_most(title, value, limit, len(cases), ", ".join(parts), peer=peer and peer.error)


class Stored(NamedTuple):
    """The mean error of predictions that are stored with some cases, in percent."""

    error: float
    rows: int


def peers_of(cases: Sequence[Case]) -> dict[str, Stored]:
    """Return the error of each peer on the cases it has an answer for."""
    found = {}
    for peer in PEERS:
        ratios = [c.peers_s[peer] / c.total_s - 1.0 for c in cases if peer in c.peers_s]
        if ratios:
            found[peer] = Stored(100.0 * float(np.mean(np.abs(ratios))), len(ratios))
    return found


def peer_errors(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the same in words."""
    for peer, (error, rows) in peers_of(cases).items():
        yield f"{'stored roofline' if peer == 'roofline' else peer} {error:.1f} (n = {rows})"
