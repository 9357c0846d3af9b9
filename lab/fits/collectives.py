"""Fit the curves of measured collectives, and how they grow with the number of ranks.

One file per GPU has a curve per library, collective, precision and number of ranks. `growth` says
how times grow when ranks double at equal bytes on the wire, by how much the wire dominates: it is
what carries a curve to rank counts nobody measured. One interconnect is fitted from rows of one's
own, `collective, dtype, ranks, bytes, time_us`, a handful per curve.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, calibration, hashes, sha256_of
from lab.fits.methods.gaussian_process import NOISE, learn, plain_line
from lab.tables.collectives import NCCL, Curves, Key, Libraries, read_libraries, read_own
from lab.tables.rows import Bools
from simulators.collectives.measured import (
    CALIBRATIONS,
    GROWTH,
    OWN_CALIBRATIONS,
    Curve,
    busbw_factor,
)
from simulators.core.jit import Floats

FOLDER, OWN = CALIBRATIONS.parent, OWN_CALIBRATIONS
FOLDS = 4
SPLIT = "errors by 4-fold cross-validation over sizes, first and last size of a curve never held"
GROWTH_SPLIT = "each NVLink GPU at 8 ranks, from its 4 ranks and the growth of the other GPUs"
COVERAGE = 0.9
LEAST_BAND = 1.645 * NOISE
"""Nine in ten of the versions of a library are that near to one another."""
NVLINK = ("a100_sxm", "h100_sxm", "b200_sxm", "b300_sxm")
PCIE = ("l40s", "rtx_pro_6000")
"""GPUs measured at 2, 4 and 8 ranks of one fabric: what growth is learnt from."""
Growth = dict[str, tuple[Floats, Floats]]
"""How times of one collective grew when ranks doubled: by GPU the weight, and the log ratio."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
GROWTH_GRID = np.arange(-10.0, 11.0, 2.0)
SMOOTHING = 1.2
"""Width, in octaves, of the window growth is averaged over."""


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the curves of each GPU of the measured table, and `growth`."""
    table, source = read_libraries(reference), hashes(reference, [NCCL])
    for gpu, libraries in table.items():
        if not only or gpu in only:
            yield _curves(f"{CALIBRATIONS.name}/{gpu}", libraries, source)
    if not only or GROWTH.stem in only:
        yield _growth(table, source)


def fit_measured(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield the curves of a user's own interconnect, under the name of its GPU."""
    yield _curves(device, {"nccl": read_own(measured)}, {measured.name: sha256_of(measured)})


def held_out_errors(measured: Curves) -> tuple[Curves, Floats]:
    """Return inner sizes with their log errors, each while it is held out.

    A size is held out in all precisions at once: they are measured together.
    """
    errors, inner = np.zeros(measured.curve.size), np.zeros(measured.curve.size, bool)
    for out in _folds(measured):
        inner |= out
        errors[out] = errors_of(measured, out)
    return measured.take(inner), errors[inner]


def errors_of(measured: Curves, out: Bools) -> Floats:
    """Return the log errors of some rows, predicted from all others."""
    guess = learn(measured.take(~out)).log_s(measured.curve[out], measured.octave[out])
    errors: Floats = guess - measured.log_s[out]
    return errors


def held_out_coverage(measured: Curves) -> Bools:
    """Say of inner sizes whether the interval holds them that is fitted without them."""
    covered = [np.zeros(0, bool)]
    for out in _folds(measured):
        bands = _bands(*held_out_errors(measured.take(~out)))
        covered.append(np.abs(errors_of(measured, out)) <= bands[measured.curve[out]])
    return np.concatenate(covered)


def _folds(measured: Curves) -> Iterator[Bools]:
    """Yield the rows that are held out together."""
    fold, inner = np.zeros(measured.curve.size, np.int64), np.zeros(measured.curve.size, bool)
    shape = [(collective, ranks) for collective, _, ranks in measured.keys]
    for together in set(shape):
        mine = np.flatnonzero(np.array([one == together for one in shape])[measured.curve])
        sizes = np.unique(measured.octave[mine])
        rank = np.searchsorted(sizes, measured.octave[mine])
        fold[mine] = rank % FOLDS
        inner[mine] = (rank > 0) & (rank < sizes.size - 1)
    for held in range(FOLDS):
        out = (fold == held) & inner
        if out.any():
            yield out


def errors_between(measured: Curves, key: Key) -> Floats:
    """Return log errors of a curve taken from those at half and at twice its ranks."""
    curves = fitted_curves(measured, with_bands=False)
    half, twice = (key[0], key[1], key[2] // 2), (key[0], key[1], key[2] * 2)
    if half not in curves or twice not in curves:
        return np.zeros(0)
    mine = measured.of(key)
    wire = np.exp2(measured.octave[mine]) * busbw_factor(key[0], key[2])
    low, high = (np.log(curves[k].time_s(wire / busbw_factor(key[0], k[2]))) for k in (half, twice))
    errors: Floats = (low + high) / 2.0 - measured.log_s[mine]
    return errors


@functools.lru_cache(maxsize=32)
def fitted_curves(measured: Curves, *, with_bands: bool = True) -> dict[Key, Curve]:
    """Return the curve of every collective, precision and rank count."""
    bands = np.zeros(len(measured.keys))
    if with_bands:
        bands = _bands(*held_out_errors(measured))
    process, curves = learn(measured), {}
    for code, key in enumerate(measured.keys):
        mine = measured.of(key)
        octave = measured.octave[mine]
        line = plain_line(octave, measured.log_s[mine])
        grid = np.arange(np.floor(octave.min()), np.ceil(octave.max()) + 1.0)
        departure = process.log_s(np.full(grid.size, code), grid) - line.log_s(grid)
        curves[key] = Curve(
            start_s=float(f"{line.start_s:.4g}"),
            bytes_per_s=float(f"{line.bytes_per_s:.4g}"),
            first_octave=float(grid[0]),
            departure=tuple(round(float(x), 3) for x in departure),
            band=round(float(bands[code]), 3),
            measured_from=round(float(octave.min()), 3),
            measured_to=round(float(octave.max()), 3),
        )
    return curves


def _bands(held: Curves, errors: Floats) -> Floats:
    """Return the band of each curve: that of all curves of its library, or its own if wider."""
    wide = max(_band(errors), LEAST_BAND)
    own = [errors[held.of(key)] for key in held.keys]
    return np.array([max(wide, _band(part)) if part.size else wide for part in own])


def _band(errors: Floats) -> float:
    return float(np.quantile(np.abs(errors), COVERAGE)) if errors.size else 0.25


def _curves(name: str, libraries: dict[str, Curves], tables: dict[str, str]) -> Calibration:
    """Return the calibration of one GPU."""
    errors = np.concatenate([held_out_errors(m)[1] for m in libraries.values()])
    lines = []
    for library, measured in sorted(libraries.items()):
        for (collective, dtype, ranks), curve in fitted_curves(measured).items():
            labels = {"library": library, "collective": collective, "dtype": dtype}
            lines += ["", "[[curve]]", *(f'{name} = "{word}"' for name, word in labels.items())]
            lines.append(f"ranks = {ranks}")
            for field, number in vars(curve).items():
                lines.append(f"{field} = {list(number) if field == 'departure' else number!r}")
    rows = sum(m.curve.size for m in libraries.values())
    return calibration(
        name, tables, rows=rows, held_out=np.expm1(errors), split=SPLIT, lines=lines, digits=4
    )


def doublings(table: Libraries, gpus: Sequence[str], collective: str) -> Growth:
    """Return growth from 4 to 8 ranks at equal bytes on the wire."""
    seen: Growth = {}
    for gpu in gpus:
        if (measured := table.get(gpu, {}).get("nccl")) is None:
            continue
        curves = fitted_curves(measured, with_bands=False)
        found = []
        for key in measured.keys:
            half = (key[0], key[1], 4)
            if key[0] == collective and key[2] == 8 and half in curves:
                mine = measured.of(key)
                wire = np.exp2(measured.octave[mine])
                wire *= busbw_factor(collective, 8) / busbw_factor(collective, 4)
                ratio = measured.log_s[mine] - np.log(curves[half].time_s(wire))
                found.append((curves[half].weight(wire), ratio))
        if found:
            weights, ratios = zip(*found, strict=True)
            seen[gpu] = np.concatenate(weights), np.concatenate(ratios)
    return seen


def smoothed(seen: Growth, weight: Floats) -> Floats:
    """Return the mean log growth of rows near each weight."""
    weights, ratios = (np.concatenate(column) for column in zip(*seen.values(), strict=True))
    near = np.exp(-0.5 * ((weight[:, None] - weights[None, :]) / SMOOTHING) ** 2) + 1e-9
    mean: Floats = (near * ratios).sum(axis=1) / near.sum(axis=1)
    return mean


def growth_errors(table: Libraries, gpus: Sequence[str], collective: str) -> dict[str, Floats]:
    """Return, by GPU, log errors at 8 ranks of growth learnt from the other GPUs."""
    seen = doublings(table, gpus, collective)
    return {
        gpu: smoothed({name: rows for name, rows in seen.items() if name != gpu}, weight) - ratio
        for gpu, (weight, ratio) in seen.items()
        if len(seen) > 1
    }


def growth_coverage(table: Libraries, gpus: Sequence[str], collective: str) -> Bools:
    """Say of rows at 8 ranks whether the interval of growth learnt from other GPUs holds them."""
    covered = [np.zeros(0, bool)]
    for gpu, errors in growth_errors(table, gpus, collective).items():
        others = growth_errors(table, [o for o in gpus if o != gpu], collective)
        band = _band(np.concatenate(list(others.values())))
        covered.append(np.abs(errors) <= band)
    return np.concatenate(covered)


def _growth(table: Libraries, tables: dict[str, str]) -> Calibration:
    """Return how curves grow with ranks, by fabric and collective."""
    on_nvlink = []
    lines = [f"weight = {GROWTH_GRID.tolist()!r}"]
    for fabric, gpus in (("nvlink", NVLINK), ("pcie", PCIE)):
        for collective in COLLECTIVES:
            seen = doublings(table, gpus, collective)
            errors = np.concatenate(list(growth_errors(table, gpus, collective).values()))
            on_nvlink += [errors] if fabric == "nvlink" else []
            growth = [round(float(x), 3) for x in smoothed(seen, GROWTH_GRID)]
            lines += [
                "",
                f"[{fabric}.{collective}]",
                f"log_growth = {growth!r}",
                f"band = {_band(errors):.3f}",
            ]
    held = np.concatenate(on_nvlink)
    return calibration(
        GROWTH.stem,
        tables,
        rows=held.size,
        held_out=np.expm1(held),
        split=GROWTH_SPLIT,
        lines=lines,
        digits=4,
    )
