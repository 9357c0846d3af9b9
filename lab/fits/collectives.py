"""Measurements become the curves of this room: `python -m lab.fits.collectives`.

One file per GPU has a curve per library, collective, precision and number of ranks. `growth.toml`
says how times grow when ranks double at equal bytes on the wire, by how much the wire dominates;
it is what carries a curve to rank counts nobody measured. With `--device NAME --measured FILE` one
interconnect is fitted from rows of one's own: `collective, dtype, ranks, bytes, time_us`, a handful
per curve.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lab.fits.methods.kin_regression import NOISE, Rows, learn, plain_line
from simulators.collectives.measured import (
    CALIBRATIONS,
    GROWTH,
    OWN_CALIBRATIONS,
    STEP_BAND,
    Curve,
    busbw_factor,
)
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.errors import UserError

Floats = NDArray[np.float64]
Key = tuple[str, str, int]  # collective, dtype, ranks

NCCL = "collectives/nccl_measured.parquet"
FOLDS = 4
SPLIT = "errors by 4-fold cross-validation over sizes, first and last size of a curve never held"
COVERAGE = 0.9
LEAST_BAND = 1.645 * NOISE
"""Nine in ten of the versions of a library are that near to one another."""
CATALOG_NAMES = {"rtx_pro_6000_server": "rtx_pro_6000"}
"""Where the table's name of a GPU is not the catalog's."""
SHORT_NAMES = {"half": "fp16", "bfloat16": "bf16"}
NVLINK = ("a100_sxm", "h100_sxm", "b200_sxm", "b300_sxm")
PCIE = ("l40s", "rtx_pro_6000")
"""GPUs measured at 2, 4 and 8 ranks of one fabric: what growth is learnt from."""
GROWTH_GRID = np.arange(-10.0, 11.0, 2.0)
SMOOTHING = 1.2
"""Width, in octaves, of the window growth is averaged over."""


@dataclass(frozen=True)
class Measured:
    """All medians of one GPU and library."""

    keys: tuple[Key, ...]
    rows: Rows

    def of(self, key: Key) -> NDArray[np.bool_]:
        """Say which rows belong to a curve."""
        code = self.keys.index(key)
        mine: NDArray[np.bool_] = self.rows_code == code
        return mine

    @property
    def rows_code(self) -> NDArray[np.int64]:
        """Return for every row the position of its curve in `keys`."""
        kin = np.array([self.kin_of(key) for key in self.keys])
        found: NDArray[np.int64] = np.argmax(
            (self.rows.kin[:, None, :] == kin[None, :, :]).all(axis=2), axis=1
        )
        return found

    def kin_of(self, key: Key) -> tuple[int, int, int]:
        """Return a curve as codes."""
        collectives = sorted({k[0] for k in self.keys})
        dtypes = sorted({k[1] for k in self.keys})
        return collectives.index(key[0]), dtypes.index(key[1]), key[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(prog="python -m lab.fits.collectives")
    parser.add_argument("--device", help="the GPU, by the name of its data sheet")
    parser.add_argument("--measured", type=Path, help="its measurements, Parquet or CSV")
    asked = parser.parse_args(arguments)
    if (asked.device is None) != (asked.measured is None):
        parser.error("--device and --measured belong together")
    if asked.device:
        path = OWN_CALIBRATIONS / f"{asked.device}.toml"
        write_calibration(
            path, calibration_text({"nccl": read_own(asked.measured)}, asked.measured)
        )
        print(path)
        return
    reference = reference_folder()
    if reference is None:
        raise UserError("there is no folder of measured tables; set SWEEPER_REFERENCE to it")
    table = read_table(reference / NCCL)
    for gpu, libraries in sorted(table.items()):
        path = CALIBRATIONS / f"{gpu}.toml"
        write_calibration(path, calibration_text(libraries, reference / NCCL))
        print(path)
    write_calibration(GROWTH, growth_text(table, reference / NCCL))
    print(GROWTH)


def read_table(path: Path) -> dict[str, dict[str, Measured]]:
    """Return the medians of the measured table by GPU and library."""
    rows = pq.read_table(path).to_pydict()
    points: dict[tuple[str, str], dict[tuple[Key, int], list[float]]] = {}
    for i in range(len(rows["gpu"])):
        library = rows["library"][i]
        if str(rows["implementation"][i]).endswith("_eager"):
            library += "_eager"
        gpu = CATALOG_NAMES.get(rows["gpu"][i], rows["gpu"][i])
        dtype = SHORT_NAMES.get(rows["dtype"][i], rows["dtype"][i])
        key = (rows["collective"][i], dtype, int(rows["ranks"][i]))
        curve = points.setdefault((gpu, library), {})
        curve.setdefault((key, int(rows["bytes"][i])), []).append(rows["time_us"][i] * 1e-6)
    table: dict[str, dict[str, Measured]] = {}
    for (gpu, library), curve in points.items():
        table.setdefault(gpu, {})[library] = _medians(curve)
    return table


def read_own(path: Path) -> Measured:
    """Return measurements of one's own.

    Raises:
        UserError: the file lacks a column.
    """
    table = pq.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)
    needs = ("collective", "dtype", "ranks", "bytes", "time_us")
    if missing := [name for name in needs if name not in table.column_names]:
        raise UserError(f"{path}: lacks the column {missing[0]}; it needs {', '.join(needs)}")
    curve: dict[tuple[Key, int], list[float]] = {}
    for row in table.select(needs).to_pylist():
        dtype = SHORT_NAMES.get(row["dtype"], row["dtype"])
        key = (row["collective"], dtype, int(row["ranks"]))
        curve.setdefault((key, int(row["bytes"])), []).append(row["time_us"] * 1e-6)
    return _medians(curve)


def _medians(curve: dict[tuple[Key, int], list[float]]) -> Measured:
    entries = sorted(curve)
    keys = tuple(sorted({key for key, _ in entries}))
    empty = Rows(np.zeros((0, 3), np.int64), np.zeros(0), np.zeros(0))
    codes = Measured(keys, empty)
    return Measured(
        keys,
        Rows(
            kin=np.array([codes.kin_of(key) for key, _ in entries]),
            octave=np.log2([size for _, size in entries]),
            log_s=np.log([float(np.median(curve[entry])) for entry in entries]),
        ),
    )


@dataclass(frozen=True)
class HeldOut:
    """Errors on rows that the fit did not see."""

    log_error: Floats
    curve: NDArray[np.int64]  # position in `Measured.keys`
    octave: Floats


def held_out_errors(measured: Measured) -> HeldOut:
    """Return errors of inner sizes, each while it is held out.

    A size is held out in all precisions at once: they are measured together.
    """
    rows, code = measured.rows, measured.rows_code
    errors, inner = np.zeros(code.size), np.zeros(code.size, bool)
    for out in _folds(measured):
        inner |= out
        guess = learn(rows.take(~out)).log_s(rows.kin[out], rows.octave[out])
        errors[out] = guess - rows.log_s[out]
    return HeldOut(errors[inner], code[inner], rows.octave[inner])


def held_out_coverage(measured: Measured) -> NDArray[np.bool_]:
    """Say of inner sizes whether the interval holds them that is fitted without them."""
    rows = measured.rows
    covered = []
    for out in _folds(measured):
        kept = Measured(measured.keys, rows.take(~out))
        inner = held_out_errors(kept)
        errors = learn(kept.rows).log_s(rows.kin[out], rows.octave[out]) - rows.log_s[out]
        bands = np.array([_band_of(inner, code) for code in range(len(measured.keys))])
        covered.append(np.abs(errors) <= bands[measured.rows_code[out]])
    return np.concatenate([np.zeros(0, bool), *covered])


def _folds(measured: Measured) -> Iterator[NDArray[np.bool_]]:
    """Yield the rows that are held out together."""
    rows = measured.rows
    code = measured.rows_code
    fold, inner = np.zeros(code.size, np.int64), np.zeros(code.size, bool)
    for together in np.unique(rows.kin[:, [0, 2]], axis=0):
        mine = np.flatnonzero((rows.kin[:, [0, 2]] == together).all(axis=1))
        sizes = np.unique(rows.octave[mine])
        rank = np.searchsorted(sizes, rows.octave[mine])
        fold[mine] = rank % FOLDS
        inner[mine] = (rank > 0) & (rank < sizes.size - 1)
    for held in range(FOLDS):
        out = (fold == held) & inner
        if out.any():
            yield out


def errors_between(measured: Measured, key: Key) -> Floats:
    """Return log errors of a curve taken from those at half and at twice its ranks."""
    curves = dict(fitted_curves(measured, with_bands=False))
    half, twice = (key[0], key[1], key[2] // 2), (key[0], key[1], key[2] * 2)
    if half not in curves or twice not in curves:
        return np.zeros(0)
    mine = measured.of(key)
    wire = np.exp2(measured.rows.octave[mine]) * busbw_factor(key[0], key[2])
    low, high = (np.log(curves[k].time_s(wire / busbw_factor(key[0], k[2]))) for k in (half, twice))
    errors: Floats = (low + high) / 2.0 - measured.rows.log_s[mine]
    return errors


def fitted_curves(measured: Measured, *, with_bands: bool = True) -> Iterator[tuple[Key, Curve]]:
    """Yield the curve of every collective, precision and rank count."""
    held = HeldOut(np.zeros(0), np.zeros(0, np.int64), np.zeros(0))
    if with_bands:
        held = held_out_errors(measured)
    process = learn(measured.rows)
    for code, key in enumerate(measured.keys):
        mine = measured.of(key)
        octave = measured.rows.octave[mine]
        line = plain_line(octave, measured.rows.log_s[mine])
        grid = np.arange(np.floor(octave.min()), np.ceil(octave.max()) + 1.0)
        kin = np.tile(measured.kin_of(key), (grid.size, 1))
        departure = process.log_s(kin, grid) - line.log_s(grid)
        yield (
            key,
            Curve(
                start_s=float(f"{line.start_s:.4g}"),
                bytes_per_s=float(f"{line.bytes_per_s:.4g}"),
                first_octave=float(grid[0]),
                departure=tuple(round(float(x), 3) for x in departure),
                band=round(_band_of(held, code), 3),
                measured_from=float(octave.min()),
                measured_to=float(octave.max()),
            ),
        )


def _band_of(held: HeldOut, code: int) -> float:
    """Return the band of a curve: that of all curves of its library, or its own if wider."""
    wide = max(_band(held.log_error), LEAST_BAND)
    own = held.log_error[held.curve == code]
    return max(wide, _band(own)) if own.size else wide


def _band(errors: Floats) -> float:
    return float(np.quantile(np.abs(errors), COVERAGE)) if errors.size else 0.25


def calibration_text(libraries: dict[str, Measured], source: Path) -> str:
    """Return the calibration of one GPU."""
    errors = np.concatenate([held_out_errors(m).log_error for m in libraries.values()])
    rows = sum(m.rows.octave.size for m in libraries.values())
    lines = _header(source, rows, errors)
    for library, measured in sorted(libraries.items()):
        for (collective, dtype, ranks), curve in fitted_curves(measured):
            lines += [
                "",
                "[[curve]]",
                f'library = "{library}"',
                f'collective = "{collective}"',
                f'dtype = "{dtype}"',
                f"ranks = {ranks}",
                f"start_s = {curve.start_s!r}",
                f"bytes_per_s = {curve.bytes_per_s!r}",
                f"first_octave = {curve.first_octave!r}",
                f"departure = {list(curve.departure)!r}",
                f"band = {curve.band!r}",
                f"measured_from = {round(curve.measured_from, 3)!r}",
                f"measured_to = {round(curve.measured_to, 3)!r}",
            ]
    return "\n".join(lines)


def _header(source: Path, rows: int, errors: Floats, split: str = SPLIT) -> list[str]:
    mape = float(np.mean(np.abs(np.expm1(errors)))) if errors.size else 0.0
    return [
        "# Written by `python -m lab.fits.collectives`. To change a number, change the fit.",
        "[provenance]",
        f'measured = "{NCCL if source.name == Path(NCCL).name else source.name}"',
        f'sha256 = "{sha256_of(source)}"',
        f"rows = {rows}",
        f'split = "{split}"',
        f"held_out_rows = {errors.size}",
        f"held_out_mape = {mape:.4f}",
    ]


@dataclass(frozen=True)
class Doublings:
    """How times of one collective grew when ranks doubled: from which GPU, at which weight."""

    gpu: NDArray[np.str_]
    weight: Floats
    log_ratio: Floats


def doublings(
    table: dict[str, dict[str, Measured]], gpus: Sequence[str], collective: str, to_ranks: int = 8
) -> Doublings:
    """Return growth from half of `to_ranks` at equal bytes on the wire."""
    names: list[str] = []
    weights: list[Floats] = []
    ratios: list[Floats] = []
    for gpu in gpus:
        measured = table.get(gpu, {}).get("nccl")
        if measured is None:
            continue
        curves = dict(fitted_curves(measured, with_bands=False))
        for key in measured.keys:
            half = (key[0], key[1], to_ranks // 2)
            if key[0] != collective or key[2] != to_ranks or half not in curves:
                continue
            mine = measured.of(key)
            wire = np.exp2(measured.rows.octave[mine])
            wire *= busbw_factor(collective, to_ranks) / busbw_factor(collective, to_ranks // 2)
            log_ratio = measured.rows.log_s[mine] - np.log(curves[half].time_s(wire))
            names += [gpu] * int(mine.sum())
            weights.append(curves[half].weight(wire))
            ratios.append(log_ratio)
    none = np.zeros(0)
    return Doublings(
        np.array(names, np.str_),
        np.concatenate([none, *weights]),
        np.concatenate([none, *ratios]),
    )


def smoothed(seen: Doublings, weight: Floats) -> Floats:
    """Return the mean log growth of rows near each weight."""
    near = np.exp(-0.5 * ((weight[:, None] - seen.weight[None, :]) / SMOOTHING) ** 2) + 1e-9
    mean: Floats = (near * seen.log_ratio).sum(axis=1) / near.sum(axis=1)
    return mean


def growth_errors(
    table: dict[str, dict[str, Measured]], gpus: Sequence[str], collective: str
) -> dict[str, Floats]:
    """Return, by GPU, log errors at 8 ranks of growth learnt from the other GPUs."""
    seen = doublings(table, gpus, collective)
    errors = {}
    for gpu in gpus:
        mine = seen.gpu == gpu
        others = Doublings(seen.gpu[~mine], seen.weight[~mine], seen.log_ratio[~mine])
        if mine.any() and others.gpu.size:
            errors[gpu] = smoothed(others, seen.weight[mine]) - seen.log_ratio[mine]
    return errors


def growth_coverage(
    table: dict[str, dict[str, Measured]], gpus: Sequence[str], collective: str
) -> NDArray[np.bool_]:
    """Say of rows at 8 ranks whether the interval of growth learnt from other GPUs holds them."""
    covered = [np.zeros(0, bool)]
    for gpu, errors in growth_errors(table, gpus, collective).items():
        others = growth_errors(table, [o for o in gpus if o != gpu], collective)
        band = STEP_BAND * _band(np.concatenate(list(others.values())))
        covered.append(np.abs(errors) <= band)
    return np.concatenate([np.zeros(0, bool), *covered])


def growth_text(table: dict[str, dict[str, Measured]], source: Path) -> str:
    """Return how curves grow with ranks, by fabric and collective."""
    collectives = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    everything: list[Floats] = []
    lines: list[str] = []
    for fabric, gpus in (("nvlink", NVLINK), ("pcie", PCIE)):
        for collective in collectives:
            seen = doublings(table, gpus, collective)
            errors = np.concatenate(list(growth_errors(table, gpus, collective).values()))
            everything += [errors] if fabric == "nvlink" else []
            lines += [
                "",
                f"[{fabric}.{collective}]",
                f"log_growth = {[round(float(x), 3) for x in smoothed(seen, GROWTH_GRID)]!r}",
                f"band = {_band(errors):.3f}",
            ]
    split = "each NVLink GPU at 8 ranks, from its 4 ranks and the growth of the other GPUs"
    errors = np.concatenate(everything)
    header = _header(source, errors.size, errors, split)
    return "\n".join([*header, f"weight = {GROWTH_GRID.tolist()!r}", *lines])


if __name__ == "__main__":
    main()
