"""How far predictions are from measured kernels that nothing was fitted to.

Three levels of information side by side, never mixed. Full: boards with a calibration, on shapes
the split rule kept from the fit. Few-shot: boards that are left out of every fit, with ten rows
per operator whose shapes then leave the test, as the mean of four draws. Zero-shot: every board
as if only its data sheet were known, beside the data sheet's roofline. Errors are of isolated
calls, host dispatch included, as the tables hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.claims.kernels import auxiliary_kernels as checks_side
from lab.claims.kernels import fused_kernels as checks_attention
from lab.claims.kernels import power as checks_power
from lab.claims.kernels.tensor_cores import tensor_checks
from lab.fits.fp32_kernels import SEEDS, few_shot_exercise
from lab.tables.kernels.fp32_kernels import Rows, operator_of, read_rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import provenance_of, read_calibration, sha256_of
from simulators.core.contract import Check
from simulators.kernels.intervals import WIDEST, interval_s
from simulators.kernels.levels import (
    boards,
    calibration_file,
    profile_of,
    stranger_bands,
    zero_shot_profile,
)
from simulators.kernels.price import price_call, roofline_s
from simulators.kernels.profile import Profile

Floats = NDArray[np.float64]

FAMILY_OF = {
    "linear": "linear", "bmm": "bmm", "conv": "conv", "softmax": "softmax + norm",
    "layer_norm": "softmax + norm", "binary": "elementwise", "unary": "elementwise",
    "pow": "elementwise", "powu": "elementwise",
}  # fmt: skip
"""What is reported together."""

TRUSTED = ("v100_pcie", "p100_pcie", "a100_pcie_40gb")
"""Boards without a power cap and with both random and layer shapes: the accuracy bar is theirs."""

BAR = {"linear": 5.0, "bmm": 10.0, "elementwise": 3.0, "softmax + norm": 10.0}
ROCM = ("mi100", "mi210")
ROCM_BAR = {"linear": 10.0, "bmm": 20.0}
LEFT_OUT = ("h100_sxm", "a100_pcie_80gb")
"""Boards measured on layers' shapes only: they stand for a board that nobody has fitted to."""

FEW_SHOT_BAR = {"linear": 9.0, "bmm": 14.0}
FEW_SHOT_ROWS = (1, 10, 50)
BAR_ROWS = 10

COVERAGE_BAR = (87.0, 94.0)
LEFT_OUT_COVERAGE_BAR = 85.0

NOISE = {
    "t4": 11.8, "a100_pcie_40gb": 3.3, "mi100": 1.5, "mi210": 1.5, "p100_pcie": 1.5,
    "a100_pcie_80gb": 1.5, "h100_sxm": 1.5,
}  # fmt: skip
"""Deviation in percent of repeats (same shape, other batch) from their median in these tables."""

SURVEY = {
    "v100_pcie": 5.87, "h100_sxm": 8.74, "a100_pcie_40gb": 8.63, "l4": 14.08, "t4": 18.51,
    "p4": 27.10, "mi100": 10.80, "mi210": 8.40, "mi250": 7.65,
}  # fmt: skip
"""What the neural peer is reported to reach on whole models of each board, in percent."""

TAU_ROWS = 2000
"""Kendall's tau compares all pairs; of more rows than this, evenly spaced ones stand for all."""


@dataclass(frozen=True)
class Compared:
    """Predictions beside measurements of one board and one reported family."""

    gpu: str
    family: str
    predicted_s: Floats
    measured_s: Floats
    covered: NDArray[np.bool_]


def checks(reference: Path, rows: str) -> list[Check]:
    """Return accuracy, coverage and the comparison with the roofline at each level.

    Args:
        reference: a folder laid out like the reference data.
        rows: `test` for layer-shaped rows the split rule holds out, `all` for every layer-shaped
            row of a folder that nothing was fitted to.
    """
    measured, skipped = read_rows(reference)
    fitted = _fitted_tables(reference)
    everything = rows == "all" and not fitted
    found = [Check(f"kernels: {problem}", None, note="skipped") for problem in skipped]
    if rows == "all" and fitted:
        found.append(Check("kernels: rows", None, note="fitted to: held-out rows only are shown"))
    found += _full(measured, everything) + _zero_shot(measured) + _few_shot(measured)
    found += tensor_checks(reference, rows) + checks_attention.checks(reference, rows)
    return found + checks_side.checks(reference, rows) + checks_power.checks(reference, rows)


def _fitted_tables(reference: Path) -> bool:
    """Say whether the shipped calibrations were fitted to the tables of this folder."""
    fitted: set[str] = set()
    for board in boards():
        file = calibration_file(board.name)
        if file is not None:
            fitted |= set(provenance_of(read_calibration(file), file).sha256)
    tables = reference.glob("gpu_kernels/*.parquet")
    return any(sha256_of(table) in fitted for table in tables)


def _full(measured: Sequence[Rows], everything: bool) -> list[Check]:
    """Check boards with a calibration on shapes that were not in it."""
    compared = []
    for gpu, family, parts in by_family(measured):
        profile = profile_of(load_gpu(gpu))
        if profile.level != "full":
            continue
        judged = [part.where(_layers(part) if everything else part.held_out) for part in parts]
        compared.append(compare(gpu, family, judged, profile))
    lines = [error_check(f"{c.gpu} {c.family} MAPE", c, _note(c.gpu)) for c in compared]
    lines += _means(compared, TRUSTED, BAR, "V100, P100, A100-40GB mean")
    lines += _means(compared, ROCM, ROCM_BAR, "MI100, MI210 mean")
    return lines + _coverage(compared)


def _few_shot(measured: Sequence[Rows]) -> list[Check]:
    """Check boards left out of every fit, given a few rows of each operator."""
    lines = []
    for gpu_name, family, parts in by_family(measured):
        if family == "conv" or (gpu_name not in LEFT_OUT and _is_calibrated(gpu_name)):
            continue
        gpu = load_gpu(gpu_name)
        blank = _as_if_new(gpu)
        for count in FEW_SHOT_ROWS:
            draws = [
                _few_shot_draw(
                    [part.where(_layers(part)) for part in parts], gpu, blank, count, seed
                )
                for seed in range(SEEDS)
            ]
            errors = [_mape(draw) for draw in draws]
            bar = FEW_SHOT_BAR.get(family) if count == BAR_ROWS and gpu_name in LEFT_OUT else None
            value = float(np.mean(errors))
            spread = ", ".join(f"{error:.1f}" for error in errors)
            note = f"few-shot; draws {spread}; {_details(draws[0])}"
            name = f"{gpu_name} {family} MAPE, {count} rows an operator"
            lines.append(_limited(name, value, bar, draws[0].measured_s.size, note))
            if count == BAR_ROWS:
                covered = float(np.mean(np.concatenate([draw.covered for draw in draws]))) * 100.0
                name = f"{gpu_name} {family} coverage, {count} rows an operator"
                lines.append(_at_least(name, covered, draws[0].measured_s.size, "few-shot"))
    return lines


def _zero_shot(measured: Sequence[Rows]) -> list[Check]:
    """Check every board as if only its data sheet were known, beside its roofline."""
    lines = []
    ours: dict[str, list[float]] = {}
    roofs: dict[str, list[float]] = {}
    for gpu_name, family, parts in by_family(measured):
        gpu = load_gpu(gpu_name)
        layers = [part.where(_layers(part)) for part in parts]
        compared = compare(gpu_name, family, layers, _as_if_new(gpu))
        ours.setdefault(gpu_name, []).append(_mape(compared))
        roof = np.concatenate([roofline_s(operator_of(part), gpu) for part in layers])
        roof_error = 100.0 * float(np.mean(np.abs(roof / compared.measured_s - 1.0)))
        roofs.setdefault(gpu_name, []).append(roof_error)
        note = f"zero-shot; roofline {roof_error:.1f}"
        lines.append(error_check(f"{gpu_name} {family} MAPE, data sheet alone", compared, note))
        covered = 100.0 * float(np.mean(compared.covered))
        name = f"{gpu_name} {family} coverage, data sheet alone"
        lines.append(_at_least(name, covered, compared.measured_s.size, "zero-shot"))
    for gpu_name, errors in ours.items():
        value, roof_mean = float(np.mean(errors)), float(np.mean(roofs[gpu_name]))
        name = f"{gpu_name} mean over operators, data sheet alone"
        note = "zero-shot; the limit is the roofline's error"
        lines.append(_limited(name, value, roof_mean, 0, note))
    return lines


def by_family(measured: Sequence[Rows]) -> list[tuple[str, str, list[Rows]]]:
    """Return the classes of each board that are reported together."""
    groups: dict[tuple[str, str], list[Rows]] = {}
    for part in measured:
        groups.setdefault((part.gpu, FAMILY_OF[part.label]), []).append(part)
    return [(gpu, family, parts) for (gpu, family), parts in sorted(groups.items())]


def _layers(part: Rows) -> NDArray[np.bool_]:
    """Return the rows with layers' shapes; all of them where a table has random shapes only."""
    return part.layer_shaped if part.layer_shaped.any() else np.ones(len(part), bool)


def _as_if_new(gpu: Gpu) -> Profile:
    """Return what other boards and the data sheet say about a device."""
    return zero_shot_profile(gpu.name, gpu.vendor, gpu.architecture, gpu.peak("fp32") / gpu.tdp_w)


def _is_calibrated(gpu: str) -> bool:
    return any(board.name == gpu for board in boards())


def compare(gpu_name: str, family: str, parts: Sequence[Rows], profile: Profile) -> Compared:
    """Return predictions of all rows with a given profile."""
    gpu = load_gpu(gpu_name)
    columns = []
    for part in (part for part in parts if len(part)):
        priced = price_call(operator_of(part), gpu, profile)
        inside = (priced.lo_s <= part.seconds) & (part.seconds <= priced.hi_s)
        columns.append((priced.latency_s, part.seconds, inside))
    if not columns:
        return Compared(gpu_name, family, np.ones(0), np.ones(0), np.ones(0, bool))
    predicted_s, measured_s, covered = (np.concatenate(c) for c in zip(*columns, strict=True))
    return Compared(gpu_name, family, predicted_s, measured_s, covered)


def _few_shot_draw(
    parts: Sequence[Rows], gpu: Gpu, blank: Profile, count: int, seed: int
) -> Compared:
    """Return predictions after a fit to `count` rows of each operator class."""
    columns = []
    for part in parts:
        predicted_s, measured_s = few_shot_exercise(part, gpu, blank, count, seed)
        bands = stranger_bands("few_shot", [b for b in boards() if b.name != gpu.name])
        lo_s, hi_s = interval_s(bands.get(part.label, WIDEST), predicted_s)
        columns.append((predicted_s, measured_s, (lo_s <= measured_s) & (measured_s <= hi_s)))
    predicted_s, measured_s, covered = (np.concatenate(c) for c in zip(*columns, strict=True))
    return Compared(gpu.name, FAMILY_OF[parts[0].label], predicted_s, measured_s, covered)


def _means(
    compared: Sequence[Compared], gpus: Sequence[str], bar: dict[str, float], title: str
) -> list[Check]:
    """Return the mean of the boards' errors for each family with a bar."""
    lines = []
    for family, limit in bar.items():
        mine = [c for c in compared if c.gpu in gpus and c.family == family and c.measured_s.size]
        if len(mine) < len(gpus):
            continue
        rows = sum(c.measured_s.size for c in mine)
        value = float(np.mean([_mape(c) for c in mine]))
        lines.append(_limited(f"{title} {family} MAPE", value, limit, rows, "full"))
    return lines


def _coverage(compared: Sequence[Compared]) -> list[Check]:
    """Return how many held-out rows lie within their 90 % interval, by family."""
    lines = []
    low, high = COVERAGE_BAR
    for family in dict.fromkeys(FAMILY_OF.values()):
        mine = [c.covered for c in compared if c.family == family and c.covered.size]
        if not mine:
            continue
        covered = np.concatenate(mine)
        value = 100.0 * float(covered.mean())
        note = f"full; asked for {low:g} to {high:g} %"
        ok = bool(low <= value <= high)
        lines.append(Check(f"{family} coverage", value, "%", low, ok, covered.size, note))
    return lines


def error_check(name: str, compared: Compared, note: str) -> Check:
    """Return the mean absolute percentage error, with its median, worst and bias in the note."""
    if not compared.measured_s.size:
        return Check(name, None, "%", note="no rows")
    rows = compared.measured_s.size
    return Check(name, _mape(compared), "%", rows=rows, note=f"{note}; {_details(compared)}")


def _limited(name: str, value: float, limit: float | None, rows: int, note: str) -> Check:
    ok = None if limit is None else bool(value <= limit)
    return Check(name, value, "%", limit, ok, rows, note)


def _at_least(name: str, value: float, rows: int, note: str) -> Check:
    bar = LEFT_OUT_COVERAGE_BAR
    return Check(name, value, "%", bar, bool(value >= bar), rows, f"{note}; at least")


def _note(gpu: str) -> str:
    """Return what else is known about a board's figures."""
    noise = f"; repeats scatter by {NOISE[gpu]:g}" if gpu in NOISE else ""
    survey = f"; survey, whole models {SURVEY[gpu]:g}" if gpu in SURVEY else ""
    return f"full{noise}{survey}"


def _mape(compared: Compared) -> float:
    return 100.0 * float(np.mean(np.abs(compared.predicted_s / compared.measured_s - 1.0)))


def _details(compared: Compared) -> str:
    """Return median, root mean square, rank correlation, bias and worst case, in percent."""
    error = 100.0 * (compared.predicted_s / compared.measured_s - 1.0)
    return (
        f"median {np.median(np.abs(error)):.1f}, RMSE {np.sqrt(np.mean(error**2)):.1f}, "
        f"tau {_kendall(compared.predicted_s, compared.measured_s):.3f}, "
        f"bias {np.mean(error):+.1f}, worst {error[np.argmax(np.abs(error))]:+.0f}"
    )


def _kendall(one: Floats, other: Floats) -> float:
    """Return Kendall's tau-b over all pairs of at most `TAU_ROWS` rows."""
    chosen = np.unique(np.linspace(0, one.size - 1, min(one.size, TAU_ROWS)).astype(int))
    x, y = one[chosen], other[chosen]
    above = np.triu_indices(x.size, 1)
    dx, dy = np.sign(x[:, None] - x[None, :])[above], np.sign(y[:, None] - y[None, :])[above]
    ties = np.sqrt(np.count_nonzero(dx) * np.count_nonzero(dy))
    return float(np.sum(dx * dy) / ties) if ties else 1.0
