"""Fit clocks, hosts, intervals of forward passes, and a framework's constants for fp32 models."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, declared, rounded, settings
from lab.fits.methods import COVERED_SHARE, best_share, grouped, quantile
from lab.tables import fp32
from lab.tables.passes import FACTS, LayerRows, PassCase, layer_rows
from lab.tables.passes import TABLES as PASS_TABLES
from lab.tables.rows import Rows, read_records
from planning.calibrate.kernels import fit_few
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.composition import adjustments, uncertainty
from simulators.composition.price import part_rows
from simulators.composition.replica import Runtime, load_runtime
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.evidence.default_rates import identity_of, measured_gpus
from simulators.evidence.lookup import BEST
from simulators.graphs.launches import BACKWARD, FORWARD, INFERENCE
from simulators.graphs.price import Framework, PhaseTime, PricedLaunches, span
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.profile import Profile
from simulators.workload.llm.parallelism import stage_of

CONFIG = settings(__file__)

SHARES = np.arange(0.0, 1.0 + 0.01 / 2, 0.01)


def fit_clocks(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the slowdown of each GPU under busy tensor cores, and the mean for other GPUs."""
    slowdown, held_out, rows = {}, [], 0
    layers = layer_rows(reference)
    for gpu in FACTS.layer_gpus.values():
        mine = [one for one in layers if one.replica.gpu.name == gpu]
        fitted = [one for one in mine if not one.is_test]
        slowdown[gpu] = best_share(SHARES, [partial(_busy_errors, one) for one in fitted])
        held_out += [_busy_errors(one, slowdown[gpu]) for one in mine if one.is_test]
        rows += sum(int(np.sum(one.tokens > CONFIG.busy_tokens)) for one in fitted)
    slowdown[adjustments.OTHER] = float(np.mean([*slowdown.values()]))
    yield declared(
        "clocks",
        content={"slowdown": slowdown},
        rows=rows,
        errors=np.expm1(np.concatenate(held_out)),
    )


def _busy_errors(layers: LayerRows, share: float) -> Floats:
    error = np.abs(np.log(layers.predicted_s(share) / layers.measured_s))
    return np.asarray(error[layers.tokens > CONFIG.busy_tokens], np.float64)


def fit_hosts(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the least host time of an iteration: scheduling, inputs and sampling.

    A line over the batch size gives the part that does not depend on the size. The fastest GPU and
    release represents all engines: a lower bound, as current ones have not been timed so.
    """
    times = [f"{part}_median_ms" for part in CONFIG.timed]
    rows = read_records(reference / CONFIG.cpu_overhead, tp=1)
    rows = [row for row in rows if None not in [row[name] for name in times]]
    lines = [
        np.polyfit([r.batch_size for r in group], [sum(r[n] for n in times) for r in group], 1)
        for group in grouped(rows, lambda row: (row.blob, row.gpu)).values()
    ]
    fixed_s = np.array([1e-3 * line[1] for line in lines])
    least_s = float(fixed_s.min())
    yield declared(
        "hosts",
        content={"host": {"prepare_s": least_s}},
        rows=len(rows),
        errors=fixed_s[fixed_s > least_s] / least_s - 1.0,
    )


@dataclass(frozen=True)
class PassConfiguration:
    """A measured configuration: the mean of its repeats, and its prediction."""

    case: PassCase
    measured_s: float
    predicted_s: float
    half_widths: uncertainty.HalfWidths
    is_known: bool  # its runtime was fitted on its GPU

    @property
    def gpu(self) -> str:
        """Name of the GPU."""
        return self.case.replica.gpu.name

    def interval_s(self, share: float) -> tuple[float, float]:
        """Return the interval, given the share that no kernel's interval explains."""
        lo_s, hi_s = uncertainty.interval_s(self.predicted_s, self.half_widths, share)
        return float(lo_s), float(hi_s)

    @property
    def off_share(self) -> float:
        """Measured over predicted time, less one."""
        return self.measured_s / self.predicted_s - 1.0

    @property
    def needed_share(self) -> float:
        """Least unexplained share whose interval covers the measurement."""
        lo_s, hi_s = self.interval_s(0.0)
        end_s = hi_s if self.measured_s > self.predicted_s else lo_s
        off, explained = self.measured_s - self.predicted_s, end_s - self.predicted_s
        return float(np.sqrt(max(0.0, off**2 - explained**2))) / self.predicted_s


def fit_pass_intervals(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the part of a pass's error that no kernel's interval explains, as a share of the pass.

    GPUs that a runtime was fitted on have the widest share, new GPUs the mean share.
    """
    known = configurations(reference)
    share = shares(known)
    log_errors = np.log([one.predicted_s / one.measured_s for one in known])
    yield declared(
        "pass_intervals",
        content={"unexplained": {"known_gpus": share[True], "new_gpus": share[False]}},
        rows=len(known),
        errors=np.expm1(np.abs(log_errors)),
    )


def configurations(reference: Path) -> list[PassConfiguration]:
    """Return every configuration of the tables in the reference folder."""
    found = []
    for table in PASS_TABLES:
        if not (reference / table.path).is_file():
            continue
        runtime = load_runtime(table.runtime)
        repeats = grouped(
            table.cases(reference),
            lambda c: (c.group, c.replica.model.name, c.replica.dtype, repr(c.terms)),
        )
        found += [_configuration(same, runtime) for same in repeats.values()]
    return found


def shares(configurations: Sequence[PassConfiguration]) -> dict[bool, float]:
    """Return the unexplained share of GPUs known to a runtime (True), and of new ones (False)."""
    known = [one for one in configurations if one.is_known and not one.case.is_test]
    new = [one for one in configurations if not one.is_known]
    widest = _covering((one.gpu, one.needed_share) for one in known)
    each = _covering((one.gpu, abs(one.off_share)) for one in new)
    return {True: max(widest, default=nan), False: float(np.mean(each)) if each else nan}


def _covering(shares: Iterable[tuple[str, float]]) -> list[float]:
    """Return the share that covers 90 % of the configurations of each GPU."""
    of_gpu = grouped(shares, lambda pair: pair[0]).values()
    return [float(quantile([share for _, share in some], COVERED_SHARE)) for some in of_gpu]


def _configuration(same: Sequence[PassCase], runtime: Runtime) -> PassConfiguration:
    case = same[0]
    replica = replace(case.replica, runtime=runtime)
    part = stage_of(replica.model, replica.layout, 0)
    steps = []
    for term in case.terms:
        widths = uncertainty.half_widths_of(part_rows(replica, term.step, part))
        steps.append({family: term.times * width for family, width in widths.items()})
    return PassConfiguration(
        case=case,
        measured_s=float(np.mean([one.measured_s for one in same])),
        predicted_s=case.predicted_s(runtime),
        half_widths=uncertainty.added(steps),
        is_known=replica.gpu.name in runtime.gpus,
    )


LAUNCHES_S = tuple(4e-6 * step for step in range(21))
GRADIENTS = tuple(round(0.70 + 0.01 * step, 2) for step in range(41))
"""Candidates for launch times and for factors of backward products."""


@dataclass(frozen=True, eq=False)
class FittedGraph:
    """A measured case with its kernels priced."""

    case: fp32.GraphCase
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


def fit_graphs(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield PyTorch's constants: backward products, launch times, depthwise convolutions."""
    rows = priced_cases(reference)
    framework = replace(
        fit_framework(rows), pace=fp32.depthwise_paces(fp32.read_profiles(reference))
    )
    without = functools.cache(partial(fit_without, rows))
    yield declared(
        "graphs",
        content={
            "framework": {
                name: rounded(getattr(framework, name), style)
                for name, style in (("launch_s", ".3g"), ("pace", ".3f"), ("gradient", ".3f"))
            }
        },
        rows=len(rows),
        errors=[row.total_s(without(row.case.graph_name)) / row.case.total_s - 1.0 for row in rows],
        provenance={"versions": {"framework": "PyTorch 1.12 to 2.1, eager, fp32"}},
    )


def priced_cases(reference: Path) -> list[FittedGraph]:
    """Return the unfused cases of one GPU that can be fitted to."""
    rows = fp32.read_rows(reference)
    drawn = {name: few_shot_profile(load_gpu(name), rows, seed=0) for name in CONFIG.new}
    return [
        FittedGraph(case, case.price(reference, drawn.get(case.gpu.name, BEST)))
        for case in fp32.read_cases(reference)
        if case.parallelism == "none" and case.has_graph
        if not case.is_fused and case.gpu.name != CONFIG.odd
    ]


def few_shot_profile(gpu: Gpu, rows: Sequence[Rows], seed: int) -> Profile:
    """Return a GPU's profile by its data sheet and `FEW_ROWS` rows of each operator class."""
    others = [one for one in measured_gpus() if one.name != gpu.name]
    profile = zero_shot_profile(identity_of(gpu), among=others)
    # Batched products first: the dispatch they show is an upper bound for single ones.
    for part in sorted(rows, key=lambda part: part.kernel):
        if part.gpu == gpu.name and part.kernel != "conv" and len(part) >= CONFIG.fewest:
            draw = np.random.default_rng(np.random.SeedSequence([seed, CONFIG.few_rows]))
            chosen = draw.choice(
                len(part), size=min(CONFIG.few_rows, len(part) // 2), replace=False
            )
            profile = fit_few(part.where(chosen), gpu, profile)
    return profile


def fit_framework(rows: Sequence[FittedGraph]) -> Framework:
    """Return the constants of least error. Raises UserError if a phase has no row to fit to."""
    trained = [row for row in rows if row.case.is_training]
    of_vendor = grouped(trained, lambda row: row.case.gpu.vendor)
    framework = Framework(
        gradient={
            vendor: min(GRADIENTS, key=partial(_phase_error, of_vendor[vendor], BACKWARD, 0.0))
            for vendor in sorted(of_vendor)
        }
    )
    judged = {
        INFERENCE: [row for row in rows if not row.case.is_training],
        FORWARD: [row for row in trained if not row.is_allocating],
        BACKWARD: trained,
    }
    if empty := [phase for phase, mine in judged.items() if not mine]:
        raise UserError(f"no graph to fit constants to: {', '.join(empty)}")

    def error(phase: str, launch_s: float) -> float:
        return _phase_error(judged[phase], phase, launch_s, framework)

    launch_s = {phase: min(LAUNCHES_S, key=partial(error, phase)) for phase in judged}
    return replace(framework, launch_s=launch_s)


def _phase_error(
    rows: Sequence[FittedGraph], phase: str, launch_s: float, gradient: float | Framework
) -> float:
    ratios = []
    for row in rows:
        factor = gradient if isinstance(gradient, float) else gradient.gradient_of(row.case.gpu)
        measured_s = row.case.backward_s if phase == BACKWARD else row.case.forward_s
        ratios.append(row.phase_s(phase, launch_s, factor) / measured_s)
    return float(np.mean(np.abs(np.log(ratios))))


def fit_without(rows: Sequence[FittedGraph], graph: str) -> Framework:
    """Return the constants fitted to the rows of all graphs but one."""
    return fit_framework([row for row in rows if row.case.graph_name != graph])
