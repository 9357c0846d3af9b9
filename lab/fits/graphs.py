"""Fit a framework's constants to whole fp32 models.

Constants are the speed of backward products, one number per vendor; the host's time for a launch,
by phase; and the pace of depthwise convolutions over plain streaming. GPUs that act as new ones
have kernels fitted to ten rows per operator. Rows whose forward pass shows fresh allocations count
in their backward pass alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, rounded
from lab.tables.fp32 import (
    MODEL_TIMES,
    PROFILES,
    SHAPES,
    GraphCase,
    depthwise_paces,
    read_cases,
    read_profiles,
    read_rows,
)
from lab.tables.rows import Rows
from planning.calibrate.kernels import fit_few
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.errors import UserError
from simulators.evidence.default_rates import identity_of, measured_gpus
from simulators.evidence.lookup import BEST
from simulators.graphs.launches import BACKWARD, FORWARD, INFERENCE
from simulators.graphs.price import CALIBRATION, Framework, PhaseTime, PricedLaunches, span
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.profile import Profile

LAUNCHES_S = tuple(4e-6 * step for step in range(21))
GRADIENTS = tuple(round(0.70 + 0.01 * step, 2) for step in range(41))
"""Candidates for launch times and for factors of backward products."""

NEW, ROWS, FEWEST = ("h100_sxm", "a100_pcie_80gb"), 10, 2
"""GPUs that act as unmeasured ones, the rows of each operator class that are
known of it, and the least rows of a class, of which half are drawn."""

ODD = "p4"
"""A GPU whose kernels were timed in another clock state."""

FOLDER = CALIBRATION.parent


@dataclass(frozen=True, eq=False)
class FittedGraph:
    """A measured case with its kernels priced."""

    case: GraphCase
    priced: PricedLaunches

    @property
    def is_allocating(self) -> bool:
        """Whether the forward pass shows fresh allocations."""
        launches = np.sum(self.priced.repeats[self.priced.of(FORWARD)])
        return self.case.is_training and self.case.is_allocating(float(launches))

    def spans(self, framework: Framework) -> dict[str, PhaseTime]:
        """Return the phases under a framework."""
        phases = (FORWARD, BACKWARD) if self.case.is_training else (INFERENCE,)
        return {phase: span(self.priced, self.case.gpu, phase, framework) for phase in phases}

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - rows live as long as a fit
    def phase_s(self, phase: str, launch_s: float, gradient: float) -> float:
        """Return the seconds of one phase under plain numbers of a framework."""
        vendor = self.case.gpu.vendor
        framework = Framework(launch_s={phase: launch_s}, gradient={vendor: gradient})
        return span(self.priced, self.case.gpu, phase, framework).latency_s

    def total_s(self, framework: Framework) -> float:
        """Return the seconds of the whole pass."""
        return sum(part.latency_s for part in self.spans(framework).values())


def fit_reference(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield PyTorch's constants, fitted to every graph."""
    rows = priced_cases(reference)
    framework = replace(fit(rows), pace=depthwise_paces(read_profiles(reference)))
    without = functools.cache(functools.partial(fit_without, rows))
    yield Calibration(
        name=CALIBRATION.stem,
        content={
            "framework": {
                "launch_s": rounded(framework.launch_s, ".3g"),
                "pace": rounded(framework.pace, ".3f"),
                "gradient": rounded(framework.gradient, ".3f"),
            }
        },
        tables=[MODEL_TIMES, SHAPES, PROFILES],
        rows=len(rows),
        split="whole graphs: each is judged by constants fitted to all others",
        errors=[row.total_s(without(row.case.graph_name)) / row.case.total_s - 1.0 for row in rows],
        provenance={"versions": {"framework": "PyTorch 1.12 to 2.1, eager, fp32"}},
    )


def priced_cases(reference: Path) -> list[FittedGraph]:
    """Return the unfused cases of one GPU that can be fitted to."""
    rows = read_rows(reference)[0]
    drawn = {name: few_shot_profile(load_gpu(name), rows, seed=0) for name in NEW}
    return [
        FittedGraph(case, case.price(reference, drawn.get(case.gpu.name, BEST)))
        for case in read_cases(reference)
        if case.parallelism == "none"
        and not case.is_fused
        and case.has_graph
        and case.gpu.name != ODD
    ]


def few_shot_profile(gpu: Gpu, rows: Sequence[Rows], seed: int) -> Profile:
    """Return a GPU's profile by its data sheet and `ROWS` rows of each operator class."""
    others = [one for one in measured_gpus() if one.name != gpu.name]
    profile = zero_shot_profile(identity_of(gpu), among=others)
    # Batched products first: the dispatch they show is an upper bound for single ones.
    for part in sorted(rows, key=lambda part: part.kernel):
        if part.gpu == gpu.name and part.kernel != "conv" and len(part) >= FEWEST:
            draw = np.random.default_rng(np.random.SeedSequence([seed, ROWS]))
            chosen = draw.choice(len(part), size=min(ROWS, len(part) // 2), replace=False)
            profile = fit_few(part.where(chosen), gpu, profile)
    return profile


def fit(rows: Sequence[FittedGraph]) -> Framework:
    """Return the constants of least error: backward products first, then the host.

    Raises:
        UserError: a phase has no row to fit to.
    """
    trained = [row for row in rows if row.case.is_training]
    framework = Framework()
    for vendor in sorted({row.case.gpu.vendor for row in trained}):
        mine = [row for row in trained if row.case.gpu.vendor == vendor]
        best = min(GRADIENTS, key=functools.partial(_error, mine, BACKWARD, 0.0))
        framework = replace(framework, gradient={**framework.gradient, vendor: best})
    judged = {
        INFERENCE: [row for row in rows if not row.case.is_training],
        FORWARD: [row for row in trained if not row.is_allocating],
        BACKWARD: trained,
    }
    if empty := [phase for phase, mine in judged.items() if not mine]:
        raise UserError(f"no graph to fit constants to: {', '.join(empty)}")

    def error(phase: str, launch_s: float) -> float:
        return _error(judged[phase], phase, launch_s, framework)

    launch_s = {phase: min(LAUNCHES_S, key=functools.partial(error, phase)) for phase in judged}
    return replace(framework, launch_s=launch_s)


def _error(
    rows: Sequence[FittedGraph], phase: str, launch_s: float, gradient: float | Framework
) -> float:
    """Return the mean |log(predicted / measured)| of one phase."""
    ratios = []
    for row in rows:
        factor = gradient if isinstance(gradient, float) else gradient.gradient_of(row.case.gpu)
        measured_s = row.case.backward_s if phase == BACKWARD else row.case.forward_s
        ratios.append(row.phase_s(phase, launch_s, factor) / measured_s)
    return float(np.mean(np.abs(np.log(ratios))))


def fit_without(rows: Sequence[FittedGraph], graph: str) -> Framework:
    """Return the constants fitted to the rows of all graphs but one."""
    return fit([row for row in rows if row.case.graph_name != graph])
