"""Fit decode attention: a form and grids; octaves left out in turn give error and interval.

Grids hold the residuals of the form, smoothed over octaves by a Gaussian process (Rasmussen and
Williams, 2006) and made non-decreasing by alternating isotonic regressions (Dykstra and Robertson,
1982). Latent attention has a second form on GPUs whose warps multiply (`latent_decode.py`), used
where its error is much less. docs/explanation/kernels.md describes the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np
from scipy.optimize import isotonic_regression

from lab.fits.kernels.kernel_calibration import (
    FittedEntry,
    Numbers,
    best_form,
    form,
    plain_entry,
)
from lab.fits.methods import band_of, matern
from lab.tables.rows import Bools, Rows, Sizes, mape
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.jit import Floats
from simulators.evidence.intervals import WIDEST
from simulators.evidence.transfer import instructions
from simulators.kernels import corrections
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.family import Entry
from simulators.workload.operators import Attention

LEAST_PACKED, LEAST_SLICE = 30, 10
"""Least rows of a packing and of a slice; with fewer a neighbour's or the packing's grid serves."""

PARTS, GUESSED = 4, 0.1
"""Rows within 1 / (2 x PARTS) octave share a place; weight, in rows, of a node without any."""

PROJECTIONS, SETTLED = 40, 1e-3
"""Most projections, and the largest change of a node at which they end."""


@dataclass(frozen=True)
class Scales:
    """Sizes of residuals, and length scales in octaves."""

    size: float
    length: float
    bytes_size: float  # of what follows bytes
    bytes_length: float
    along: float  # among steps of equal bytes
    noise: float


SHARED = Scales(size=0.3, length=4.0, bytes_size=0.15, bytes_length=2.0, along=6.0, noise=0.12)
OWN = Scales(size=0.15, length=4.0, bytes_size=0.08, bytes_length=2.0, along=6.0, noise=0.03)


def places(attention: Attention) -> Floats:
    """Return log2 of the pairs and of the tokens of each decode step, a row per step."""
    _, _, pairs, tokens = next(corrections.slices_of(attention))
    both: Floats = np.log2(np.stack(np.broadcast_arrays(pairs, tokens), axis=-1))
    return both


def fit_grids(
    rows: Rows,
    form: corrections.Form,
    numbers: corrections.Numbers,
    refit: Callable[[Rows, corrections.Numbers], corrections.Numbers],
) -> corrections.GridTable:
    """Return the numbers of every packing and the grids of every slice of decode steps.

    `numbers` of the form are fitted to all rows; `refit` fits them to some rows, held near others.
    """
    slices = list(corrections.slices_of(rows.operator))
    packed: dict[int, list[Bools]] = {}
    for where, mine, _, _ in slices:
        packed.setdefault(where.packing, []).append(mine)
    by_packing: dict[int, corrections.Numbers] = {}
    grids: dict[corrections.Slice, Floats] = {}
    for packing, parts in sorted(packed.items()):
        mine = np.any(parts, axis=0)
        if np.count_nonzero(mine) >= LEAST_PACKED or len(packed) == 1:
            blocks = partial(_blocks_of, rows.operator_of, packing)
            some = replace(rows.where(mine), operator_of=blocks)
            by_packing[packing] = refit(some, numbers)
            kinds = [where for where, *_ in slices if where.packing == packing]
            grids |= _grids_of(some, partial(form, numbers=by_packing[packing]), kinds)
    return corrections.GridTable(by_packing, grids)


def _blocks_of(operator_of: Callable[[Sizes], Attention], packing: int, sizes: Sizes) -> Attention:
    """Return decode steps as blocks of one key head each, with the query heads of their packing."""
    attention = operator_of(sizes)
    each = np.maximum(attention.kv_heads, 1.0)
    sums = ("requests", "query_tokens", "pairs", "kv_tokens", "context_tokens")
    more = {name: np.asarray(getattr(attention, name)) * each for name in sums}
    heads = (corrections.LATENT_NOMINAL if attention.latent else corrections.NOMINAL)[packing]
    kv_heads = attention.kv_heads if attention.latent else 1.0
    return replace(attention, heads=heads, kv_heads=kv_heads, **more)


def _grids_of(
    rows: Rows, form: Callable[[Attention], Floats], kinds: list[corrections.Slice]
) -> dict[corrections.Slice, Floats]:
    """Return the grids of a packing and of its slices; all latent widths share one grid."""
    steps = rows.operator
    at, residual = places(steps), np.log(rows.seconds / form(steps))
    shape = tuple(int(np.ceil(side)) + 1 for side in at.max(axis=0))
    nodes = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=2).astype(np.float64)
    flat = nodes.reshape(-1, 2)
    found = smoothed(at, residual, np.concatenate([flat, at]), SHARED)
    shared, left = found[: -len(at)].reshape(shape), residual - found[-len(at) :]
    pairs, tokens = np.exp2(nodes).transpose(2, 0, 1)
    dims, windows = (np.broadcast_to(x, residual.shape) for x in (steps.head_dim, steps.window))
    grids = {kinds[0].shared: shared}
    for where in kinds:
        mine = (dims == where.head_dim) & (windows == where.window)
        if np.count_nonzero(mine) < LEAST_SLICE:
            continue
        own = smoothed(at[mine], left[mine], flat, OWN).reshape(shape)
        plain = np.log(form(corrections.decode_steps_at(where, pairs, tokens, steps))) + shared
        count = np.full(shape, GUESSED)
        np.add.at(count, tuple(np.rint(at[mine]).astype(np.int64).T), 1.0)
        grids[where] = nearest_rising(plain + own, count) - plain
    if steps.latent and kinds[0] in grids:
        return {kinds[0].shared: shared + grids[kinds[0]]}
    return grids


def smoothed(known_at: Floats, values: Floats, wanted: Floats, scales: Scales) -> Floats:
    """Return the mean of the process at wanted places, given values at known ones."""
    known, which = np.unique(np.rint(PARTS * known_at) / PARTS, axis=0, return_inverse=True)
    which = which.reshape(-1)
    count = np.bincount(which)
    by_place = np.split(values[np.argsort(which, kind="stable")], np.cumsum(count)[:-1])
    middle = np.array([np.median(some) for some in by_place])
    # Rows of one place share part of their noise: more of them say little more.
    noise = scales.noise**2 * (0.3 + 0.7 / count)
    weights = np.linalg.solve(_covariance(known, known, scales) + np.diag(noise), middle)
    return np.asarray(_covariance(wanted, known, scales) @ weights, np.float64)


def _covariance(one: Floats, other: Floats, scales: Scales) -> Floats:
    x, y = (one[:, None, side] - other[None, :, side] for side in (0, 1))
    near = matern(x / scales.length) * matern(y / scales.length)
    alike = matern((x + y) / scales.bytes_length) * matern(0.5 * (x - y) / scales.along)
    return scales.size**2 * near + scales.bytes_size**2 * alike


def nearest_rising(grid: Floats, weights: Floats) -> Floats:
    """Return the grid with the least weighted squares that is non-decreasing along both axes."""
    fitted, owed = grid.copy(), [np.zeros_like(grid), np.zeros_like(grid)]
    for _ in range(PROJECTIONS):
        before = fitted
        for axis in (0, 1):
            wanted = fitted + owed[axis]
            columns = zip(np.moveaxis(wanted, axis, 1), np.moveaxis(weights, axis, 1), strict=True)
            found = [isotonic_regression(value, weights=weight).x for value, weight in columns]
            fitted = np.moveaxis(np.stack(found), 1, axis)
            owed[axis] = wanted - fitted
        if np.abs(fitted - before).max() < SETTLED:
            break
    return corrections.rising(fitted)


TURNS = 3
JUDGED_ROWS = 12000
FORM_ROWS, PACKED_ROWS = 2000, 500
"""Rows that a form is fitted to: of a kernel, and of one packing of heads."""

FEWEST_ROWS = 150
"""A kernel with fewer rows has no grids."""

PACKED_RIDGE = 5.0
"""Weight of the kernel's numbers in the fit of a packing, in rows."""


def fit_decode(rows: Rows) -> FittedEntry:
    """Return the entry fitted to rows that are not held out; octaves give interval and error."""
    gpu = load_gpu(rows.gpu)
    entry = fit_entry(rows.where(~rows.held_out), gpu)
    parts = octaves_left_out(rows)
    predicted, measured = map(np.concatenate, zip(*parts, strict=True))
    band = band_of(predicted, measured) if predicted.size else WIDEST
    return FittedEntry(rows.name, replace(entry, band=band), len(rows), mape(predicted, measured))


def octaves_left_out(rows: Rows) -> list[tuple[Floats, Floats]]:
    """Return predicted and measured seconds of the octaves left out in each turn."""
    rows, gpu = rows.drawn(JUDGED_ROWS), load_gpu(rows.gpu)
    found = []
    octaves = np.rint(places(rows.operator)).astype(np.int64) % TURNS
    for side, turn in product((0, 1), range(TURNS)):
        out = octaves[:, side] == turn
        if out.any() and not out.all():
            entry, aside = fit_entry(rows.where(~out), gpu), rows.where(out)
            found.append((fitted_seconds(aside.operator, gpu, entry), aside.seconds))
    return found


def fit_entry(rows: Rows, gpu: Gpu) -> Entry:
    """Return the entry fitted to all of these rows."""
    some = rows.thinned(FORM_ROWS)
    has_other = some.operator.latent and multiplies_by_warps(gpu)
    forms = ("decode", "warp_latent") if has_other else ("decode",)
    name, numbers = best_form(forms, some, partial(form_seconds, some.operator, gpu))
    entry = plain_entry(rows, numbers)
    if len(rows) < FEWEST_ROWS:
        return entry

    def refit(packed: Rows, near: Numbers) -> Numbers:
        some = packed.drawn(PACKED_ROWS)
        seconds_of = partial(form_seconds, some.operator, gpu)
        return form(name).fit(seconds_of, some.seconds, ridge=PACKED_RIDGE, near=near)

    return replace(entry, grid=fit_grids(rows, partial(form_seconds, gpu=gpu), numbers, refit))


def multiplies_by_warps(gpu: Gpu) -> bool:
    """Return whether single warps drive the tensor cores of a GPU, as before Hopper."""
    return gpu.architecture in instructions()["warp"]
