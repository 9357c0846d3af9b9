"""The time of a whole graph: its kernels in a row, as far as the host keeps up with them.

The host launches kernels one after another and runs ahead of the GPU; where it falls behind, or has
to read a result before the next launch, the GPU waits. Its times are fitted to whole models
(`lab/fits/graphs.py`), and so is what tells products of a backward pass from forward ones: they
read their factors in orders that libraries like better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE
from simulators.core.jit import Floats, Ints
from simulators.evidence.lookup import BEST
from simulators.graphs.forward import BACKWARD, KernelLaunch
from simulators.kernels.energy import energy_j, resting_w
from simulators.kernels.price import Level, price
from simulators.workload.operators import Compute, Elementwise, Gemm, positions_alike

CALIBRATION = PACKAGE / "graphs" / "calibration" / "pytorch.toml"

SCALARS = ("reads", "writes", "heads", "kv_heads", "head_dim", "top_k")
"""Fields that are one number for a whole column of operators."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Overheads of a framework in addition to kernel times."""

    launch_s: Mapping[str, float] = field(default_factory=dict)  # of a kernel, by phase
    gradient: Mapping[str, float] = field(default_factory=dict)  # by vendor: backward products
    pace: Mapping[str, float] = field(default_factory=dict)  # by kind: time over plain streaming
    synchronises: bool = True  # whether waits of the host are counted

    def gradient_of(self, gpu: Gpu) -> float:
        """Return the time of a backward product over a forward product of equal size."""
        return self.gradient.get(gpu.vendor, 1.0)


@dataclass(frozen=True)
class PricedLaunches:
    """Kernels of a graph with their times, all repetitions included, in seconds and joules."""

    launches: tuple[KernelLaunch, ...]
    seconds: Floats
    lo_s: Floats
    hi_s: Floats
    joules: Floats
    levels: Ints  # of each: what its price rests on

    def of(self, phase: str) -> NDArray[np.bool_]:
        """Return which kernels belong to a phase."""
        return np.array([launch.phase == phase for launch in self.launches], bool)

    @property
    def repeats(self) -> Floats:
        """How often each kernel is launched."""
        return np.array([launch.repeat for launch in self.launches], np.float64)


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """Seconds and joules of one phase of a pass: kernels and host launches."""

    busy_s: float
    launch_s: float
    lo_s: float
    hi_s: float
    energy_j: float

    @property
    def latency_s(self) -> float:
        """Seconds from its first launch to the end of its last kernel."""
        return self.busy_s + self.launch_s


def load_framework() -> Framework:
    """Return the constants fitted to whole models under PyTorch."""
    table = read_calibration(CALIBRATION)["framework"]
    return Framework(**{name: table[name] for name in ("launch_s", "gradient", "pace")})


def price_launches(
    launches: Sequence[KernelLaunch], gpu: Gpu, level: Level = BEST
) -> PricedLaunches:
    """Return kernels with their times; kernels of one kind are priced in one call."""
    count = len(launches)
    seconds, lo_s, hi_s, joules = (np.zeros(count) for _ in range(4))
    levels = np.zeros(count, np.int64)
    for where in positions_alike([launch.kernel for launch in launches], _varying):
        operator = _stacked([launches[i].kernel for i in where])
        priced = price(operator, gpu, level)
        seconds[where], lo_s[where], hi_s[where] = priced.latency_s, priced.lo_s, priced.hi_s
        joules[where] = energy_j(operator, gpu, np.asarray(priced.latency_s, np.float64))
        levels[where] = priced.level
    repeats = np.array([launch.repeat for launch in launches], np.float64)
    seconds, lo_s, hi_s, joules = (c * repeats for c in (seconds, lo_s, hi_s, joules))
    return PricedLaunches(tuple(launches), seconds, lo_s, hi_s, joules, levels)


def span(priced: PricedLaunches, gpu: Gpu, phase: str, framework: Framework) -> PhaseTime:
    """Return the time of one phase under a framework.

    Bands of kernels of one class are taken to err together, and classes independently.
    """
    mine = priced.of(phase)
    factor = slowdown(priced, gpu, framework)
    busy_s = float(np.sum((priced.seconds * factor)[mine]))
    launch_s = 0.0
    if host_s := framework.launch_s.get(phase, 0.0):
        repeats = priced.repeats[mine]
        waits = np.array([launch.waits for launch in priced.launches], bool)[mine]
        each_s = (priced.seconds * factor)[mine] / repeats
        end_s = finish_s(each_s, repeats, waits & framework.synchronises, host_s)
        launch_s = max(end_s - busy_s, 0.0)
    below, above = _spread(priced, factor, mine)
    return PhaseTime(
        busy_s=busy_s,
        launch_s=launch_s,
        lo_s=busy_s + launch_s - below,
        hi_s=busy_s + launch_s + above,
        energy_j=float(np.sum((priced.joules * factor)[mine])) + launch_s * resting_w(gpu),
    )


def finish_s(each_s: Floats, repeats: Floats, waits: NDArray[np.bool_], launch_s: float) -> float:
    """Return when the last kernel ends under a host that launches one after another.

    The host runs ahead of the GPU as far as it can, and the GPU runs kernels in order; a launch
    waits for a result that the host reads first. Neighbours that repeat alike are a loop.

    >>> times, once = np.array([1.0, 5.0, 1.0]), np.ones(3)
    >>> finish_s(times, once, np.zeros(3, bool), launch_s=2.0)
    10.0
    >>> finish_s(times, once, np.array([False, True, False]), launch_s=2.0)
    12.0
    """
    order = _as_run(repeats)
    each_s, waits = each_s[order], waits[order]
    host_s = end_s = 0.0
    for part in np.split(np.arange(order.size), np.flatnonzero(waits) + 1):
        if part.size:
            launched_s = host_s + launch_s * np.arange(1, part.size + 1)
            done_s = np.cumsum(each_s[part])
            begins_s = np.maximum(launched_s, end_s) - (done_s - each_s[part])
            end_s = float(done_s[-1] + np.max(begins_s))
            host_s = end_s if waits[part[-1]] else float(launched_s[-1])
    return end_s


def _as_run(repeats: Floats) -> NDArray[np.int64]:
    """Return the positions of kernels in the order they run."""
    changes = np.flatnonzero(np.diff(repeats)) + 1
    loops = np.split(np.arange(repeats.size), changes)
    return np.concatenate([np.tile(loop, int(repeats[loop[0]])) for loop in loops])


def slowdown(priced: PricedLaunches, gpu: Gpu, framework: Framework) -> Floats:
    """Return the time of each kernel within a model over its time alone."""
    gradient = framework.gradient_of(gpu)
    ordered = [
        gradient if launch.phase == BACKWARD and isinstance(launch.kernel, Gemm) else 1.0
        for launch in priced.launches
    ]
    return np.array(ordered) * [framework.pace.get(each.pace, 1.0) for each in priced.launches]


def _spread(priced: PricedLaunches, factor: Floats, mine: NDArray[np.bool_]) -> tuple[float, float]:
    """Return how far the 90 % interval reaches below and above the kernels' sum."""
    classes = np.array([type(launch.kernel).__name__ for launch in priced.launches])[mine]
    below = ((priced.seconds - priced.lo_s) * factor)[mine]
    above = ((priced.hi_s - priced.seconds) * factor)[mine]
    sums = [(below[classes == c].sum(), above[classes == c].sum()) for c in np.unique(classes)]
    lo, hi = (float(np.sqrt(np.sum(np.square(side)))) for side in zip(*sums, strict=True))
    return lo, hi


def _varying(kernel: Compute) -> set[str]:
    """Return the fields that do not matter for pricing together: rates go by a stream's name."""
    names = {"repeat"} if isinstance(kernel, Elementwise) else {"repeat", "name"}
    return names.union(_columns(kernel))


def _columns(kernel: Compute) -> list[str]:
    """Return the fields in which kernels that are priced in one call may differ."""
    return [n for n, value in vars(kernel).items() if isinstance(value, float) and n not in SCALARS]


def _stacked(kernels: Sequence[Compute]) -> Compute:
    """Return one operator over columns for kernels of one kind."""
    columns: dict[str, Any] = {
        name: np.array([getattr(kernel, name) for kernel in kernels], np.float64)
        for name in _columns(kernels[0])
    }
    return dataclasses.replace(kernels[0], repeat=1, **columns)
