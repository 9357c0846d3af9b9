"""From the best mapping to silicon: time, energy and area of a chip as it would be measured.

A mapper assumes perfect control. Chips lose time at tile borders, in DMA, in sequencers and in the
host, draw power in clocks and control, and spend area on units that a mapping does not see:

    time   = sum over layers of |on-chip cycles * compute, DRAM cycles * memory| / clock + start
    energy = dynamic * (energy of all levels on chip, and multipliers) + standing * area * time
    area   = whole * (buffers, registers and multipliers)

|a, b| = (a^q + b^q)^(1/q): transfers overlap with work in part, as phases of a layer differ; q is
`overlap`. `compute`, `dynamic` and `whole` have a further factor for designs with published chips.
All numbers are fitted to published chips (`lab/fits/accelerators/chip_runs.toml`); intervals are
the errors of chips that were left out. The energy of DRAM is not included, nor power that a chip
draws when idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulators.catalog.accelerator import Accelerator
from simulators.core.calibration import read_calibration
from simulators.core.folder import PACKAGE
from simulators.dataflow.evaluation import PJ_PER_J, Evaluation, area_mm2, level_cycles

FILE = PACKAGE / "dataflow" / "calibration" / "silicon.toml"
Z90 = 1.6449
"""Half-width of a 90 % interval in standard deviations."""


@dataclass(frozen=True)
class MappedLayer:
    """One layer, or a fused group of layers, on an accelerator under a mapping."""

    times: int
    on_chip_cycles: float  # of the slowest on-chip level or the multipliers
    dram_cycles: float
    on_chip_j: float
    layers: int = 1  # of a group that runs once


@dataclass(frozen=True)
class Losses:
    """Factors of one quantity: time, energy or area.

    `shared` and `other` are the two factors of the quantity's equation. `designs` are further
    factors of designs with published chips. Spreads are standard deviations of log errors.
    """

    shared: float
    other: float
    designs: Mapping[str, float]
    spread: float  # of a further chip of a known design
    new_spread: float  # of a chip of another design

    def factor(self, design: str) -> float:
        """Return the shared factor times that of the design, if its chips are known."""
        return self.shared * self.designs.get(design, 1.0)

    def interval(self, value: float, design: str) -> tuple[float, float]:
        """Return the 90 % interval around a value."""
        width = math.exp(Z90 * (self.spread if design in self.designs else self.new_spread))
        return value / width, value * width


@dataclass(frozen=True)
class Silicon:
    """The fitted factors of all quantities.

    `start_s` is the time between layers; `overlap` is 1 if transfers wait for work, and infinite if
    all transfers overlap with work.
    """

    time: Losses
    energy: Losses
    area: Losses
    start_s: float
    overlap: float = math.inf

    def latency_s(self, work: Iterable[MappedLayer], clock_hz: float, design: str) -> float:
        """Return the time of some layers one after the other."""
        compute, memory = self.time.factor(design), self.time.other

        def cycles(one: MappedLayer) -> float:
            on_chip, dram = one.on_chip_cycles * compute, one.dram_cycles * memory
            longest = max(on_chip, dram)
            if math.isinf(self.overlap) or longest == 0.0:
                return longest
            shares = (on_chip / longest) ** self.overlap + (dram / longest) ** self.overlap
            return float(longest * shares ** (1.0 / self.overlap))

        return sum(one.times * (cycles(one) / clock_hz + one.layers * self.start_s) for one in work)

    def energy_j(
        self,
        work: Iterable[MappedLayer],
        mm2: float,
        latency_s: float,
        design: str,
        scale: float = 1.0,
    ) -> float:
        """Return the energy on the chip; `scale` is that of dynamic energy by process node."""
        dynamic_j = scale * sum(one.times * one.on_chip_j for one in work)
        standing_j = self.energy.other * mm2 * latency_s
        return self.energy.designs.get(design, 1.0) * (self.energy.shared * dynamic_j + standing_j)

    def area_mm2(self, accelerator: Accelerator) -> float:
        """Return the area of a whole chip, or core."""
        return self.area.factor(accelerator.design) * area_mm2(accelerator)


@dataclass(frozen=True)
class Chip:
    """What a chip would measure, each with a 90 % interval. `is_known`: its design was fitted."""

    latency_s: tuple[float, float, float]
    energy_j: tuple[float, float, float]
    area_mm2: tuple[float, float, float]
    is_known: bool


def work_of(times: int, evaluation: Evaluation, accelerator: Accelerator) -> MappedLayer:
    """Return the cycles and the on-chip energy of a layer under its mapping."""
    lines, dram = evaluation.traffic, accelerator.levels[0].name
    inner = range(1, len(accelerator.levels))
    shared = max((level_cycles(k, lines, accelerator) for k in inner), default=0)
    on_chip_pj = sum(line.energy_pj for line in lines if line.level != dram)
    return MappedLayer(
        times=times,
        on_chip_cycles=max(evaluation.compute_cycles, shared),
        dram_cycles=level_cycles(0, lines, accelerator),
        on_chip_j=(on_chip_pj + evaluation.mac_energy_pj) / PJ_PER_J,
    )


def chip_of(
    work: Iterable[MappedLayer], accelerator: Accelerator, *, is_changed: bool = False
) -> Chip:
    """Return what a chip would measure on some layers.

    `is_changed`: the accelerator is a resized one, whose interval is that of an unknown design.
    """
    silicon, layers, design = calibrated(), tuple(work), accelerator.design
    latency_s = silicon.latency_s(layers, accelerator.clock_hz, design)
    mm2 = silicon.area_mm2(accelerator)
    energy_j = silicon.energy_j(layers, mm2, latency_s, design)
    shown = "" if is_changed else design
    return Chip(
        latency_s=(latency_s, *silicon.time.interval(latency_s, shown)),
        energy_j=(energy_j, *silicon.energy.interval(energy_j, shown)),
        area_mm2=(mm2, *silicon.area.interval(mm2, shown)),
        is_known=shown in silicon.time.designs,
    )


def calibrated() -> Silicon:
    """Return the fitted factors of the package."""
    return silicon_of(read_calibration(FILE))


def silicon_of(content: Mapping[str, Mapping[str, object]]) -> Silicon:
    """Return the factors of the content of a calibration file."""
    time, energy, area = (_quantity(content[name]) for name in ("time", "energy", "area"))
    start_s, overlap = (float(content["time"][name]) for name in ("start_s", "overlap"))  # type: ignore[arg-type]
    return Silicon(time, energy, area, start_s, overlap)


def _quantity(table: Mapping[str, object]) -> Losses:
    designs = table["designs"]
    assert isinstance(designs, Mapping)
    shared, other, spread, new = (
        float(table[name])  # type: ignore[arg-type]
        for name in ("shared", "other", "spread", "new_spread")
    )
    return Losses(shared, other, {str(k): float(v) for k, v in designs.items()}, spread, new)
