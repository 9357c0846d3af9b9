"""Training steps of papers, recipes and frameworks' tables, each under constants that never saw it.

Groups of a source, a model and a GPU fall to either half of three splits. A row's error is the mean
over the splits, each time under the constants fitted to the other half. Beside it stand one MFU for
each source and precision, of the same half, and the peer where it has a prediction. Sources that
were in no fit are predicted by the constants in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.claims.lines import absent, at_most, within
from lab.fits.training.training_steps import (
    FITTED_SOURCES,
    SPLITS,
    Priced,
    fastest_s,
    halves,
    priced_steps,
)
from lab.tables.training.steps import (
    AUTOMODEL,
    BRIDGE,
    DGXC,
    FOUNDRY,
    MEASURED,
    MEGASCALE,
    PAPERS,
    TITAN,
)
from simulators.core.calibration import read_calibration
from simulators.core.contract import Check
from simulators.core.jit import Floats
from simulators.training.constants import CALIBRATION, constants_of

NEEDS = (MEASURED,)


@dataclass(frozen=True)
class Judged:
    """A measured step with its errors in percent, one for each split it was held out of."""

    priced: Priced
    errors: Floats
    of_constant_mfu: Floats
    in_band: bool


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the mean error of each source beside its limit, the peer's and a constant MFU's."""
    rows = list(judged(reference))
    if not rows:
        yield absent("measured steps")
    lines: tuple[tuple[str, list[Judged], float | None], ...] = (
        (
            "A100, Korthikanti",
            [r for r in rows if "Korthikanti" in r.priced.step.group[0]],
            4.0,
        ),
        ("A100 papers", _of(rows, PAPERS), 8.0),
        (MEGASCALE, _of(rows, MEGASCALE), None),
        (FOUNDRY, _of(rows, FOUNDRY), 8.0),
        ("Megatron-Bridge and DGX Cloud, dense", _of(rows, BRIDGE, DGXC), 11.0),
        ("Megatron-Bridge and DGX Cloud, mixtures", _of(rows, BRIDGE, DGXC, mixtures=True), 20.0),
        (TITAN, _of(rows, TITAN), None),
        (AUTOMODEL, _of(rows, AUTOMODEL) + _of(rows, AUTOMODEL, mixtures=True), None),
    )
    for name, mine, limit in lines:
        yield from _line(f"step time, {name}", mine, limit)
    fitted = [r for r in rows if r.priced.step.source in FITTED_SOURCES]
    inside = [np.array([r.in_band for r in fitted], bool)]
    yield from within("step time, rows within their 90 % interval", inside)


def judged(reference: Path) -> Iterator[Judged]:
    """Yield every step that is not flagged, with its errors."""
    table = read_calibration(CALIBRATION)
    used = constants_of(table["step"])
    rows = [one for one in priced_steps(reference) if not one.step.is_flagged]
    fitting = [one for one in rows if one.step.source in FITTED_SOURCES]
    splits = [
        dict(zip((one.step.row for one in fitting), halves(fitting, split), strict=True))
        for split in range(SPLITS)
    ]
    for one in rows:
        row, errors, baseline = one.step.row, [], []
        if row not in splits[0]:
            errors.append(100.0 * (fastest_s(one, used) / one.step.seconds - 1.0))
        for split, in_first in enumerate(splits):
            if row not in in_first:
                continue
            other = not in_first[row]
            name = f"split_{split}_{'first' if other else 'second'}"
            errors.append(
                100.0 * (fastest_s(one, constants_of(table[name])) / one.step.seconds - 1.0)
            )
            mfu = _mfus([r for r in fitting if in_first[r.step.row] == other])
            share = mfu.get((one.step.source, one.step.job.dtype)) or mfu.get((one.step.source, ""))
            if share:
                baseline.append(100.0 * (_ideal_s(one) / share / one.step.seconds - 1.0))
        ratio = one.step.seconds / fastest_s(one, used)
        in_band = bool(used.band[0] <= ratio <= used.band[1])
        yield Judged(one, np.array(errors), np.array(baseline), in_band)


def _mfus(rows: Sequence[Priced]) -> Mapping[tuple[str, str], float]:
    """Return the median MFU by source, and by source and precision."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in rows:
        for dtype in ("", one.step.job.dtype):
            key = one.step.source, dtype
            found.setdefault(key, []).append(_ideal_s(one) / one.step.seconds)
    return {key: float(np.median(values)) for key, values in found.items()}


def _ideal_s(one: Priced) -> float:
    """Return the seconds of a step at the peak of its precision."""
    return one.step.useful_flops / one.step.job.gpu.peak(one.step.job.dtype)


def _of(rows: Sequence[Judged], *sources: str, mixtures: bool = False) -> list[Judged]:
    return [
        r for r in rows if r.priced.step.source in sources and r.priced.step.is_mixture == mixtures
    ]


def _line(name: str, rows: Sequence[Judged], limit: float | None) -> Iterator[Check]:
    """Yield the mean of a source's absolute errors with what stands beside it."""
    if not rows:
        yield absent(name, unit="%")
        return
    mine = np.array([np.mean(np.abs(r.errors)) for r in rows])
    signed = np.concatenate([r.errors for r in rows])
    parts = [f"median {np.median(mine):.1f}, bias {np.mean(signed):+.1f}"]
    if baseline := [np.mean(np.abs(r.of_constant_mfu)) for r in rows if r.of_constant_mfu.size]:
        parts.append(f"constant MFU {np.mean(baseline):.1f}")
    peer = np.array([r.priced.step.peer_s / r.priced.step.seconds for r in rows])
    theirs = None
    if (known := peer[~np.isnan(peer)]).size:
        theirs = 100.0 * float(np.mean(np.abs(known - 1.0)))
        parts.append(f"Calculon {theirs:.1f} (n = {known.size})")
    worst = max(rows, key=lambda r: float(np.mean(np.abs(r.errors))))
    step = worst.priced.step
    parts.append(f"worst {np.mean(worst.errors):+.0f} ({step.group[1]} on {step.job.gpu.name})")
    yield at_most(name, float(np.mean(mine)), limit, len(rows), ", ".join(parts), peer=theirs)
