"""Fit decode attention, and foretell whole octaves that were left out of a fit.

Steps are timed at powers of two of requests and of tokens, and many differ in heads alone, so rows
set aside at random have twins in a fit. Users ask for steps between the powers. So whole octaves
are left out in turns: every third one of pairs (of request and key head), then every third one of
tokens. Each row is foretold twice, from octaves on either side: errors and intervals are of these.

Latent attention on boards whose warps multiply has a second form (`latent_decode.py`), which is
kept where it errs much less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from lab.fits.kernels.form_starts import DECODE, WARP_LATENT
from lab.fits.methods.bands import band_of
from lab.fits.methods.decode_grids import fit_grids, places
from lab.fits.methods.entries import Fitted, plain_entry
from lab.tables.rows import Floats, Rows, mape
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.borrowing import instructions
from simulators.evidence.intervals import WIDEST
from simulators.kernels.entries import Entry
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.fused import Numbers

WARP = "warp"
"""How boards whose warps multiply are called among instructions."""

TURNS = 3
"""Of every so many octaves one is left out."""

JUDGED_ROWS = 12000
"""Rows drawn of a kernel to be foretold so."""

FORM_ROWS, PACKED_ROWS = 2000, 500
"""Rows a form is fitted to: of a kernel, and of one packing of heads. More say nothing new."""

FEWEST_ROWS = 150
"""A kernel with fewer rows has the form alone."""

RIDGE, PACKED_RIDGE = 0.1, 5.0
"""Weight of where a fit begins, in rows; of a packing it begins with the kernel's numbers."""

REACH = 4.0
"""No number leaves where it started by more than a factor of 55."""

LEAST = {"l2_speed": 1.0, "l2_share": 0.2, "split": 0.002}
MOST = {"compute": 1.0, "bandwidth": 1.0, "l2_share": 1.5, "split": 4.0}
"""Rates are parts of the data sheet's; L2 is no slower than memory; some kernels split no keys."""


MUCH_LESS = 0.9
"""What the second form must err of the first one's error to be kept."""


def fit_decode(rows: Rows) -> Fitted:
    """Return the entry fitted to the rows that are not held out; band and error are of octaves."""
    gpu = load_gpu(rows.gpu)
    entry = fit_entry(rows.where(~rows.held_out), gpu)
    parts = octaves_left_out(rows)
    said, measured = (np.concatenate(column) for column in zip(*parts, strict=True))
    band = band_of(said, measured) if said.size else WIDEST
    return Fitted(rows.name, replace(entry, band=band), len(rows), mape(said, measured))


def octaves_left_out(rows: Rows) -> list[tuple[Floats, Floats]]:
    """Return what fits say of the octaves they have not seen, and what was measured, by turn."""
    rows, gpu = rows.drawn(JUDGED_ROWS), load_gpu(rows.gpu)
    found = []
    octaves = np.rint(places(rows.operator)).astype(np.int64) % TURNS
    for side, turn in product((0, 1), range(TURNS)):
        out = octaves[:, side] == turn
        if not out.any() or out.all():
            continue
        entry = fit_entry(rows.where(~out), gpu)
        aside = rows.where(out)
        found.append((fitted_seconds(aside.operator, gpu, entry), aside.seconds))
    return found


def fit_entry(rows: Rows, gpu: Gpu) -> Entry:
    """Return the entry fitted to all of these rows."""
    numbers = _numbers(rows.thinned(FORM_ROWS), gpu)
    entry = plain_entry(rows, numbers)
    if len(rows) < FEWEST_ROWS:
        return entry
    form = partial(form_seconds, gpu=gpu)

    def refit(some: Rows, near: Numbers) -> Numbers:
        return _fit_form(near, PACKED_RIDGE, gpu, some.drawn(PACKED_ROWS))

    return replace(entry, grid=fit_grids(rows, form, numbers, refit))


def _numbers(rows: Rows, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form that is kept."""
    usual = _fit_form(DECODE, RIDGE, gpu, rows)
    if not rows.operator.latent or gpu.architecture not in instructions()[WARP]:
        return usual
    other = _fit_form(WARP_LATENT, RIDGE, gpu, rows)
    errors = [mape(form_seconds(rows.operator, gpu, n), rows.seconds) for n in (usual, other)]
    return other if errors[1] < MUCH_LESS * errors[0] else usual


def _fit_form(begin: Numbers, ridge: float, gpu: Gpu, rows: Rows) -> dict[str, float]:
    """Return the form's numbers, held near those it begins with."""
    form = WARP_LATENT if "gap_clocks" in begin else DECODE
    attention, names = rows.operator, list(form)
    first = np.log(list(form.values()))
    low, high = first - REACH, first + REACH
    for bounds, told in ((low, LEAST), (high, MOST)):
        for name, value in told.items():
            if name in form:
                bounds[names.index(name)] = np.log(value)
    return fit_named(
        lambda numbers: form_seconds(attention, gpu, numbers),
        names,
        np.clip(np.log([begin[name] for name in names]), low, high),
        rows.seconds,
        low=low,
        high=high,
        ridge=ridge,
    )
