"""Fit attention and expert kernels to measured tables: `python -m lab.fits.fused_kernels`.

On half of all shapes: first the few numbers of the form, then the trees, then for decode the knots
of the table, if they say more about shapes set aside within that half. Of the other half, one half
again gives the 90 % interval and the rest judges it; errors are of both. One file per GPU is
written to `calibration/fused`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.fits.decode_grids import fit_knots
from lab.fits.methods.least_squares import fit_log
from lab.fits.methods.monotone_trees import bend_lines, fit_bend
from lab.tables.kernels.expert_layers import FRONTIER, FRONTIER_GPUS, read_layers
from lab.tables.kernels.fp32_kernels import fraction
from lab.tables.kernels.fused_kernels import FOLDER as MEASURED
from lab.tables.kernels.fused_kernels import (
    GPUS,
    NARROW,
    TABLES,
    Measured,
    attention_of,
    products_of,
    read_measured,
)
from lab.tables.kernels.prompt_chunks import (
    CHUNK_GPUS,
    CHUNKS,
    MIXED,
    MIXED_GPUS,
    POINTS,
    read_chunks,
)
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.errors import UserError
from simulators.kernels.families.attention import (
    fitted_seconds,
    form_seconds,
    formula_seconds,
)
from simulators.kernels.families.experts import fitted_expert_seconds
from simulators.kernels.families.fused import (
    FORMS,
    PARTS,
    attention_features,
    expert_features,
    expert_seconds,
    mixed_features,
)
from simulators.kernels.frameworks import FOLDER, Entry
from simulators.kernels.interpolation_grid import Knots, knot_lines, sliced
from simulators.kernels.intervals import WIDEST, Band, band_of
from simulators.kernels.monotone_correction import Correction

Floats = NDArray[np.float64]

FORM_ROWS, TREE_ROWS = 3000, 8000
"""Rows a fit looks at, drawn evenly; more of them say nothing new."""

ALPHA, TREES, DEPTH = 0.5, 64, 4
"""Trees add nothing beyond: laws, not their number, bound the error."""

RIDGE = 0.1
REACH = 4.0
"""No number leaves where it started by more than a factor of 55."""

MOST = {"prefill": {"tile": 64.0}, "mixed": {"tile": 64.0}}
"""Half of the tallest tile of query rows. Whole prompts hardly tell a tile from a step, and a
taller one would make a short chunk pay for its whole prefix many times over."""

MUCH_LESS = 0.9
"""Trees mend what is less; and some laws they mend better in one form than in the other."""

KNOTTED_TREES = 24
"""Trees that only serve head sizes a table of knots lacks."""

NARROW_TREES = 36
"""Enough for experts in narrow formats, whose layers are few or look alike."""

NARROW_SHIPPED = {
    "h100_sxm": (("trtllm", "fp8_block"), ("trtllm", "w4a16"), ("vllm", "w4a16")),
    "b200_sxm": (
        ("trtllm", "fp8_block"), ("trtllm", "fp4"), ("trtllm", "w4a8"), ("vllm", "fp4"),
        ("flashinfer", "fp8_block"),
    ),
    "rtx_pro_6000": (("trtllm", "fp4"),),
}  # fmt: skip
"""Experts in narrow formats that are kept, by whose kernels engines run."""

LIBRARY = {("b200_sxm", "vllm", "experts", "fp8_block"): "flashinfer"}
"""Kernels of a library, timed through a framework that others than itself are run by: vLLM's public
recipes switch them off, SGLang's ask for them."""

EXPERT_TREES = {"sglang.experts.bf16": 96}
"""SGLang ships tuned tiles for some layers only, which are two and three times as fast."""

WRITTEN = (1e-3, 3)
"""How finely files hold trees: leaves in tenths of a percent, thresholds in three digits."""

SET_ASIDE = 0.35
"""Beyond this part of the split, fitted rows are set aside while a choice is made."""

BANDED = 0.75
"""Up to this part of the split, rows no fit saw give the interval; the rest judge it."""

KERNELS = (*TABLES, "mixed")

FEWEST_ROWS, FEWEST_TREE_ROWS = 60, 150
"""A kernel with fewer rows borrows from a relative; with fewer fitted ones it has no trees."""

SHIPPED = ("vllm", "trtllm", "flashinfer")
"""Calibrations stay small: the third framework's kernels are fitted where these have no table."""


@dataclass(frozen=True)
class Fitted:
    """One kernel's entry and what it rests on."""

    rows: Measured
    entry: Entry
    error: float  # mean absolute, of held-out rows


def main() -> None:
    """Fit the GPUs named on the command line, or all."""
    reference = reference_folder()
    if reference is None:
        raise UserError("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    for gpu in sys.argv[1:] or GPUS:
        fit_gpu(reference, gpu)


def fit_gpu(reference: Path, gpu: str) -> None:
    """Write the calibration of one GPU's fused kernels."""
    done = []
    for kernel in KERNELS:
        found = [r for r in read_measured(reference, gpu, kernel) if r.spread == "balanced"]
        found = [
            replace(r, framework=LIBRARY.get((gpu, r.framework, kernel, r.dtypes), r.framework))
            for r in found
        ]
        shipped = [rows for rows in found if rows.framework in SHIPPED] or found
        shipped = [rows for rows in shipped if rows.dtypes not in NARROW or _is_shipped(rows)]
        shipped = shipped + read_chunks(reference, gpu, kernel)
        if kernel == "experts":
            shipped = shipped + read_layers(reference, gpu)
        for rows in _joined(shipped):
            done.append(fit_kernel(rows))
            print(f"{gpu} {rows.name} {100.0 * done[-1].error:.1f} %", flush=True)
    if done:
        write_calibration(FOLDER / f"{gpu}.toml", _text(reference, gpu, done))


def _is_shipped(rows: Measured) -> bool:
    """Return whether a narrow format of experts is kept; others are borrowed, as on H200."""
    return (rows.framework, rows.dtypes) in NARROW_SHIPPED.get(rows.gpu, ())


def _joined(found: list[Measured]) -> list[Measured]:
    """Return rows of one kernel together, whatever table they are from."""
    names: dict[str, Measured] = {}
    for rows in found:
        before = names.get(rows.name)
        names[rows.name] = rows if before is None else before.with_rows(rows)
    return [rows for rows in names.values() if rows.seconds.size >= FEWEST_ROWS]


def fit_kernel(rows: Measured) -> Fitted:
    """Return the entry of one kernel, fitted to half of its shapes."""
    seen, unseen = rows.where(~rows.held_out), rows.where(rows.held_out)
    gpu = load_gpu(rows.gpu)
    numbers = _fit_form(_thinned(seen, FORM_ROWS), gpu)
    plain = Entry(rows.framework, numbers, None, None, WIDEST, rows.gpu, calibrated=True)
    entry = _fit_rest(seen, gpu, plain)
    predicted = predicted_s(unseen, gpu, entry)
    error = float(np.mean(np.abs(predicted / unseen.seconds - 1.0)))
    banded = fraction(unseen.group) < BANDED
    band = band_of(predicted[banded], unseen.seconds[banded])
    return Fitted(rows, replace(entry, band=band), error)


def _fit_rest(seen: Measured, gpu: Gpu, plain: Entry) -> Entry:
    """Return the entry with trees and, where they foretell rows set aside better, with knots."""
    if seen.seconds.size < FEWEST_TREE_ROWS:
        return plain
    trees = EXPERT_TREES.get(seen.name, NARROW_TREES if seen.dtypes in NARROW else TREES)
    bent = replace(plain, bend=_fit_trees(seen, gpu, plain, trees))
    if not seen.kernel.endswith("decode"):
        return bent
    aside = fraction(seen.group) >= SET_ASIDE
    first, rest = seen.where(~aside), seen.where(aside)
    choices = [replace(plain, bend=_fit_trees(first, gpu, plain, TREES))]
    choices += [_with_knots(first, gpu, choices[0], alone=alone) for alone in (False, True)]
    errors = [
        float(np.mean(np.abs(predicted_s(rest, gpu, choice) / rest.seconds - 1.0)))
        for choice in choices
    ]
    best = choices[int(np.argmin(errors))].knots
    if best is None:
        return bent
    worse = _better_by_formula(best, rest, gpu, choices[0])
    knots = _with_knots(seen, gpu, bent, alone=best.alone).knots
    assert knots is not None
    kept = {where: grid for where, grid in knots.grids.items() if where.packing not in worse}
    trees = TREES if worse else KNOTTED_TREES
    bent = replace(plain, bend=_fit_trees(seen, gpu, plain, trees))
    return replace(bent, knots=replace(knots, grids=kept))


def _better_by_formula(knots: Knots, rest: Measured, gpu: Gpu, bent: Entry) -> set[int]:
    """Return the packings whose rows, set aside, a formula foretells better than knots."""
    attention = attention_of(rest)
    errors = [
        np.abs(np.log(predicted_s(rest, gpu, entry) / rest.seconds))
        for entry in (bent, replace(bent, knots=knots))
    ]
    rows: dict[int, list[NDArray[np.bool_]]] = {}
    for where, mine, _, _ in sliced(attention, alone=knots.alone):
        rows.setdefault(where.packing, []).append(mine)
    both = {packing: np.any(parts, axis=0) for packing, parts in rows.items()}
    return {p for p, mine in both.items() if errors[0][mine].mean() < errors[1][mine].mean()}


def _with_knots(rows: Measured, gpu: Gpu, bent: Entry, *, alone: bool) -> Entry:
    """Return an entry that reads times off the knots of these rows."""
    knots = fit_knots(
        attention_of(rows),
        rows.seconds,
        lambda operator: formula_seconds(operator, gpu, bent),
        alone=alone,
    )
    return replace(bent, knots=knots)


def _fit_trees(rows: Measured, gpu: Gpu, plain: Entry, trees: int) -> Correction:
    thinned = _thinned(rows, TREE_ROWS)
    features, seconds, target = _stacked(thinned, gpu, plain)
    weights = np.resize(_weights(thinned), seconds.size)  # of both products of experts
    return fit_bend(
        features, seconds, target, alpha=ALPHA, trees=trees, depth=DEPTH, weights=weights
    )


def _weights(rows: Measured) -> Floats:
    """Return what rows count: SGLang's experts less, the more GPUs they are dealt over.

    Its kernel walks over the rows of others' experts too, which the form has no word for, and its
    table holds as many rows of 128 GPUs as of one.
    """
    if rows.framework != "sglang" or rows.kernel != "experts":
        return np.ones(rows.seconds.size)
    weights = rows.sizes["moe_ep_size"] ** -0.5
    return np.asarray(weights / weights.mean(), np.float64)


def predicted_s(rows: Measured, gpu: Gpu, entry: Entry) -> Floats:
    """Return what an entry says of measured rows: of experts, both products together."""
    if rows.kernel != "experts":
        return fitted_seconds(attention_of(rows), gpu, entry)
    up, down = _products_s(rows, gpu, entry)
    return np.asarray(up + down, np.float64)


def _products_s(rows: Measured, gpu: Gpu, entry: Entry) -> list[Floats]:
    return [
        fitted_expert_seconds(p.sizes, p.experts, p.top_k, rows.dtypes, gpu, entry)
        for p in products_of(rows)
    ]


def _fit_form(rows: Measured, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form alone: the first form's, unless another errs much less."""
    fitted = [_fit_numbers(rows, gpu, form) for form in FORMS[rows.kernel.removeprefix("mla_")]]
    seconds = _form_of(rows, gpu)
    errors = [float(np.mean(np.abs(np.log(seconds(one) / rows.seconds)))) for one in fitted]
    best = int(np.argmin(errors))
    return fitted[best if errors[best] < MUCH_LESS * errors[0] else 0]


def _fit_numbers(rows: Measured, gpu: Gpu, form: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers of one form."""
    names = list(form)
    start = np.log([form[name] for name in names])
    ends = [0.0 if n in PARTS else x + REACH for n, x in zip(names, start, strict=True)]
    most = [np.log(MOST.get(rows.kernel, {}).get(name, np.inf)) for name in names]
    high = np.minimum(ends, most)
    seconds = _form_of(rows, gpu)
    fitted = fit_log(
        lambda p: seconds(dict(zip(names, np.exp(p).tolist(), strict=True))),
        np.minimum(start, high),
        rows.seconds,
        weights=_weights(rows),
        ridge=np.full(start.size, RIDGE),
        bounds=(start - REACH, high),
    )
    return dict(zip(names, np.exp(fitted).tolist(), strict=True))


def _form_of(rows: Measured, gpu: Gpu) -> Callable[[dict[str, float]], Floats]:
    """Return the uncorrected seconds as a function of the form's numbers."""
    if rows.kernel == "experts":
        products = [product.sizes for product in products_of(rows)]
        return lambda numbers: np.asarray(
            sum(expert_seconds(sizes, rows.dtypes, gpu, numbers) for sizes in products)
        )
    attention = attention_of(rows)
    return lambda numbers: form_seconds(attention, gpu, numbers)


def _stacked(rows: Measured, gpu: Gpu, plain: Entry) -> tuple[Floats, Floats, Floats]:
    """Return features, formula and target; a layer's time is shared by its products as computed."""
    if rows.kernel != "experts":
        seconds = predicted_s(rows, gpu, plain)
        looked_at = mixed_features if rows.kernel == "mixed" else attention_features
        return looked_at(attention_of(rows), seconds.shape), seconds, rows.seconds
    each = _products_s(rows, gpu, plain)
    miss = rows.seconds / (each[0] + each[1])
    features = np.concatenate(
        [expert_features(p.sizes, p.experts, p.top_k) for p in products_of(rows)], axis=1
    )
    return features, np.concatenate(each), np.concatenate([part * miss for part in each])


def _thinned(rows: Measured, count: int) -> Measured:
    size = rows.seconds.size
    return rows.where(np.unique(np.linspace(0, size - 1, min(size, count)).astype(np.int64)))


def _text(reference: Path, gpu: str, done: list[Fitted]) -> str:
    """Return the calibration file of one GPU."""
    kernels = [fitted.rows.kernel for fitted in done]
    tables = [f"{MEASURED}/{TABLES[kernel]}.parquet" for kernel in TABLES if kernel in kernels]
    others = (
        (MIXED, MIXED_GPUS),
        (CHUNKS, CHUNK_GPUS),
        (POINTS, ("a100_sxm",)),
        (FRONTIER, FRONTIER_GPUS),
    )
    tables += [table for table, gpus in others if gpu in gpus]
    measured = ", ".join(f'"{table}"' for table in tables)
    hashes = ", ".join(f'"{sha256_of(reference / table)}"' for table in tables)
    lines = [
        f"# Written by `python -m lab.fits.fused_kernels` for {gpu}.",
        "# To change a number, change the fit.",
        "[provenance]",
        f"measured = [{measured}]",
        f"sha256 = [{hashes}]",
        f"rows = {sum(fitted.rows.seconds.size for fitted in done)}",
        'split = "half of the shapes, by a hash of the shape; errors are of the other half"',
        f"held_out_mape = {np.mean([fitted.error for fitted in done]):.4f}",
    ]
    for fitted in done:
        name, entry = fitted.rows.name, fitted.entry
        numbers = ", ".join(f"{key} = {value:.5g}" for key, value in entry.numbers.items())
        lines += ["", f'[entry."{name}"]', f"numbers = {{ {numbers} }}"]
        lines += [f"held_out_mape = {fitted.error:.4f}", _band_line(entry.band)]
        if entry.bend is not None:
            lines += [f'[entry."{name}".bend]', *bend_lines(entry.bend, *WRITTEN)]
        if entry.knots is not None:
            lines += [f'[entry."{name}".knots]', *knot_lines(entry.knots)]
    return "\n".join(lines)


def _band_line(band: Band) -> str:
    lo, hi = (", ".join(f"{x:.4f}" for x in ends) for ends in (band.lo, band.hi))
    return f"band = {{ lo = [{lo}], hi = [{hi}] }}"


if __name__ == "__main__":
    main()
