"""Fit decode attention: a form and grids; errors and intervals are of whole octaves left out.

Steps were timed at powers of two of requests and of tokens, and many differ in heads alone, so rows
held out at random have twins in a fit, while users ask for steps between the powers. So every third
octave of pairs (of request and key head) is left out in turn, then every third one of tokens.

Latent attention on GPUs whose warps multiply has a second form (`latent_decode.py`), kept where its
error is much less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from lab.fits.methods.decode_grids import fit_grids, places
from lab.fits.methods.entries import FittedEntry, plain_entry
from lab.fits.methods.forms import Numbers, form
from lab.fits.methods.held_out import band_of
from lab.tables.rows import Floats, Rows, mape
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.intervals import WIDEST
from simulators.evidence.transfer import instructions
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.family import Entry

TURNS = 3
JUDGED_ROWS = 12000
FORM_ROWS, PACKED_ROWS = 2000, 500
"""Rows that a form is fitted to: of a kernel, and of one packing of heads."""

FEWEST_ROWS = 150
"""A kernel with fewer rows has no grids."""

RIDGE, PACKED_RIDGE = 0.1, 5.0
"""Weight of the start, in rows; a packing starts from the kernel's numbers."""

MUCH_LESS = 0.9


def fit_decode(rows: Rows) -> FittedEntry:
    """Return the entry fitted to rows that are not held out; band and error are of octaves."""
    gpu = load_gpu(rows.gpu)
    entry = fit_entry(rows.where(~rows.held_out), gpu)
    parts = octaves_left_out(rows)
    predicted, measured = (np.concatenate(column) for column in zip(*parts, strict=True))
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
    numbers = _fit_form("decode", some, gpu)
    name = "decode"
    if some.operator.latent and multiplies_by_warps(gpu):
        other = _fit_form("warp_latent", some, gpu)
        errors = [
            mape(form_seconds(some.operator, gpu, one), some.seconds) for one in (numbers, other)
        ]
        if errors[1] < MUCH_LESS * errors[0]:
            name, numbers = "warp_latent", other
    entry = plain_entry(rows, numbers)
    if len(rows) < FEWEST_ROWS:
        return entry

    def refit(packed: Rows, near: Numbers) -> Numbers:
        return _fit_form(name, packed.drawn(PACKED_ROWS), gpu, PACKED_RIDGE, near)

    return replace(entry, grid=fit_grids(rows, partial(form_seconds, gpu=gpu), numbers, refit))


def multiplies_by_warps(gpu: Gpu) -> bool:
    """Return whether a GPU's tensor cores are driven by single warps, as before Hopper."""
    return gpu.architecture in instructions()["warp"]


def _fit_form(
    name: str, rows: Rows, gpu: Gpu, ridge: float = RIDGE, near: Numbers | None = None
) -> dict[str, float]:
    attention = rows.operator
    return form(name).fit(
        lambda numbers: form_seconds(attention, gpu, numbers), rows.seconds, ridge=ridge, near=near
    )
