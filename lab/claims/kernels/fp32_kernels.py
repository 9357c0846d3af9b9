"""How far fp32 calls are from measured ones that nothing was fitted to.

Three levels of information side by side, never mixed. Full: boards with a calibration, on shapes
the split rule kept from the fit. Few-shot: boards that are left out of every fit, with ten rows
per operator whose shapes then leave the test, as the mean of four draws. Zero-shot: every board
as if only its data sheet were known, beside the data sheet's roofline. Errors are of isolated
calls, host dispatch included, as the tables hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.claims.judged import Judged, detailed, details, judged
from lab.claims.lines import SHAPES_COVERAGE_BAR, absent, at_most, was_fitted, within
from lab.fits.intervals.fp32_errors import SEEDS, few_shot_exercise
from lab.tables.kernels.fp32_kernels import read_rows
from lab.tables.rows import Bools, Rows, mape
from planning.calibrate.kernels import band_by_rows
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.contract import Check
from simulators.evidence.boards import boards, identity_of
from simulators.evidence.calibration_files import calibration_file
from simulators.evidence.intervals import interval_s
from simulators.kernels.levels import profile_of, zero_shot_profile
from simulators.kernels.price import price_call, roofline_s
from simulators.kernels.profile import Profile

FAMILY_OF = {
    "linear": "linear",
    "bmm": "bmm",
    "conv": "conv",
    "softmax": "softmax + norm",
    "layer_norm": "softmax + norm",
    "binary": "elementwise",
    "unary": "elementwise",
    "pow": "elementwise",
    "powu": "elementwise",
}
"""What is reported together."""

TRUSTED = ("v100_pcie", "p100_pcie", "a100_pcie_40gb")
"""Boards without a power cap and with both random and layer shapes: the accuracy bar is theirs."""

BAR = {"linear": 5.0, "bmm": 10.0, "elementwise": 3.0, "softmax + norm": 10.0}
ROCM = ("mi100", "mi210")
ROCM_BAR = {"linear": 10.0, "bmm": 20.0}
LEFT_OUT = ("h100_sxm", "a100_pcie_80gb")
"""Boards measured on layers' shapes only: they stand for a board that nobody has fitted to."""

EACH_BAR = {"conv": 20.0}
"""Of every board by itself: cuDNN chooses among kernels by shape, and none is told apart."""

FEW_SHOT_BAR = {"linear": 9.0, "bmm": 14.0}
FEW_SHOT_ROWS = (1, 10, 50)
BAR_ROWS = 10

NOISE = {
    "t4": 11.8,
    "a100_pcie_40gb": 3.3,
    "mi100": 1.5,
    "mi210": 1.5,
    "p100_pcie": 1.5,
    "a100_pcie_80gb": 1.5,
    "h100_sxm": 1.5,
}
"""Deviation in percent of repeats (same shape, other batch) from their median in these tables."""

SURVEY = {
    "v100_pcie": 5.87,
    "h100_sxm": 8.74,
    "a100_pcie_40gb": 8.63,
    "l4": 14.08,
    "t4": 18.51,
    "p4": 27.10,
    "mi100": 10.80,
    "mi210": 8.40,
    "mi250": 7.65,
}
"""What the neural peer is reported to reach on whole models of each board, in percent."""

Family = tuple[str, str]  # GPU, and what is reported together


def checks(reference: Path, rows: str) -> list[Check]:
    """Return accuracy, coverage and the comparison with the roofline at each level.

    `test` rows are layer-shaped ones that the split rule holds out, `all` rows every layer-shaped
    one of a folder that nothing was fitted to.
    """
    measured, skipped = read_rows(reference)
    files = (calibration_file("fp32", board.name) for board in boards())
    tables = reference.glob("gpu_kernels/*.parquet")
    fitted = was_fitted((file for file in files if file is not None), tables)
    found = [absent(f"kernels: {problem}", "skipped") for problem in skipped]
    if rows == "all" and fitted:
        found.append(absent("kernels: rows", "fitted to: held-out rows only are shown"))
    found += _full(measured, whole=rows == "all" and not fitted)
    return found + _zero_shot(measured) + _few_shot(measured)


def _full(measured: Sequence[Rows], *, whole: bool) -> list[Check]:
    """Check boards with a calibration on shapes that were not in it."""
    found: dict[Family, Judged] = {}
    for (gpu, family), parts in by_family(measured).items():
        profile = profile_of(load_gpu(gpu))
        if profile.level == "full":
            unseen = [part.layers if whole else part.where(part.held_out) for part in parts]
            found[gpu, family] = compare(unseen, profile)
    lines = [
        detailed(f"{gpu} {family} MAPE", one, _note(gpu), EACH_BAR.get(family))
        for (gpu, family), one in found.items()
    ]
    lines += _means(found, TRUSTED, BAR, "V100, P100, A100-40GB mean")
    lines += _means(found, ROCM, ROCM_BAR, "MI100, MI210 mean")
    for family in dict.fromkeys(FAMILY_OF.values()):
        inside = [one.inside for (_, what), one in found.items() if what == family]
        lines += within(f"{family} coverage", inside, "full", SHAPES_COVERAGE_BAR)
    return lines


def _few_shot(measured: Sequence[Rows]) -> list[Check]:
    """Check boards left out of every fit, given a few rows of each operator."""
    lines, held = [], {}
    calibrated = {board.name for board in boards()}
    for (name, family), parts in by_family(measured).items():
        if family == "conv":
            continue
        gpu, layers = load_gpu(name), [part.layers for part in parts]
        blank, is_told = _as_if_new(gpu), name in LEFT_OUT or name not in calibrated
        for count in FEW_SHOT_ROWS if is_told else (BAR_ROWS,):
            draws = [_few_shot_draw(layers, gpu, blank, count, seed) for seed in range(SEEDS)]
            if count == BAR_ROWS:
                held[name, family] = np.concatenate([draw.inside for draw in draws])
            if not is_told:
                continue
            errors = [draw.mape for draw in draws]
            rows, title = draws[0].measured_s.size, f"{count} rows an operator"
            bar = FEW_SHOT_BAR.get(family) if count == BAR_ROWS and name in LEFT_OUT else None
            spread = ", ".join(f"{error:.1f}" for error in errors)
            note = f"few-shot; draws {spread}; {details(draws[0])}"
            value = float(np.mean(errors))
            lines.append(at_most(f"{name} {family} MAPE, {title}", value, bar, rows, note))
            if count == BAR_ROWS:
                called = f"{name} {family} coverage, {title}"
                lines += within(called, [held[name, family]], "few-shot; all draws")
    return lines + _coverage(held, f"{BAR_ROWS} rows an operator", "few-shot; all draws")


def _zero_shot(measured: Sequence[Rows]) -> list[Check]:
    """Check every board as if only its data sheet were known, beside its roofline."""
    lines, held = [], {}
    ours: dict[str, list[float]] = {}
    roofs: dict[str, list[float]] = {}
    for (name, family), parts in by_family(measured).items():
        gpu, layers = load_gpu(name), [part.layers for part in parts]
        one = compare(layers, _as_if_new(gpu))
        roof = np.concatenate([roofline_s(part.operator, gpu) for part in layers])
        roof_error = 100.0 * mape(roof, one.measured_s)
        ours.setdefault(name, []).append(one.mape)
        roofs.setdefault(name, []).append(roof_error)
        note = f"zero-shot; roofline {roof_error:.1f}"
        lines.append(detailed(f"{name} {family} MAPE, data sheet alone", one, note))
        held[name, family] = one.inside
    for name, errors in ours.items():
        title = f"{name} mean over operators, data sheet alone"
        note = "zero-shot; the limit is the roofline's error"
        lines.append(at_most(title, float(np.mean(errors)), float(np.mean(roofs[name])), 0, note))
    return lines + _coverage(held, "data sheet alone", "zero-shot")


def _coverage(held: Mapping[Family, Bools], title: str, note: str) -> list[Check]:
    """Return what intervals hold of each board left out in turn, and of the mean one.

    A board lies off as a whole, so all of its rows may be held, or few: nine of ten is asked of the
    boards together, each of which counts as much.
    """
    lines = []
    for family in dict.fromkeys(family for _, family in held):
        shares = {gpu: float(np.mean(inside)) for (gpu, of), inside in held.items() if of == family}
        each = ", ".join(f"{gpu} {100.0 * share:.0f}" for gpu, share in shares.items())
        said = f"{note}; mean of boards, each left out: {each}"
        lines += within(f"{family} coverage, {title}", [np.array([*shares.values()])], said)
    return lines


def by_family(measured: Sequence[Rows]) -> dict[Family, list[Rows]]:
    """Return the classes of each board that are reported together."""
    groups: dict[Family, list[Rows]] = {}
    for part in measured:
        groups.setdefault((part.gpu, FAMILY_OF[part.kernel]), []).append(part)
    return dict(sorted(groups.items()))


def compare(parts: Sequence[Rows], profile: Profile) -> Judged:
    """Return predictions of all rows with a given profile."""
    return judged(parts, lambda part: price_call(part.operator, load_gpu(part.gpu), profile))


def _as_if_new(gpu: Gpu) -> Profile:
    """Return what other boards and the data sheet say about a device."""
    return zero_shot_profile(identity_of(gpu))


def _few_shot_draw(
    parts: Sequence[Rows], gpu: Gpu, blank: Profile, count: int, seed: int
) -> Judged:
    """Return predictions after a fit to `count` rows of each operator class."""
    columns = []
    others = [board.name for board in boards() if board.name != gpu.name]
    for part in parts:
        one = few_shot_exercise(part, gpu, blank, count, seed)
        lo_s, hi_s = interval_s(band_by_rows(part.kernel, one.missed, others), one.predicted_s)
        inside = (lo_s <= one.measured_s) & (one.measured_s <= hi_s)
        columns.append((one.predicted_s, one.measured_s, inside))
    predicted_s, measured_s, inside = (np.concatenate(c) for c in zip(*columns, strict=True))
    return Judged(predicted_s, measured_s, inside, np.ones(inside.size, bool), calibrated=True)


def _means(
    found: Mapping[Family, Judged], gpus: Sequence[str], bar: Mapping[str, float], title: str
) -> list[Check]:
    """Return the mean of the boards' errors for each family with a bar."""
    lines = []
    for family, limit in bar.items():
        mine = [found[gpu, family] for gpu, what in found if gpu in gpus and what == family]
        mine = [one for one in mine if one.measured_s.size]
        if len(mine) == len(gpus):
            rows = sum(one.measured_s.size for one in mine)
            value = float(np.mean([one.mape for one in mine]))
            lines.append(at_most(f"{title} {family} MAPE", value, limit, rows, "full"))
    return lines


def _note(gpu: str) -> str:
    """Return what else is known about a board's figures."""
    noise = f"; repeats scatter by {NOISE[gpu]:g}" if gpu in NOISE else ""
    survey = f"; survey, whole models {SURVEY[gpu]:g}" if gpu in SURVEY else ""
    return f"full{noise}{survey}"
