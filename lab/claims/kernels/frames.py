"""Measured kernels beside predicted ones, as frames of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import EMPTY, columns, together
from lab.fits.kernels.fused_kernels import predicted_s as fused_s
from lab.fits.methods.held_out import band_of
from lab.fits.methods.transfer_trials import formats_of
from lab.tables.rows import Floats, Rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.intervals import Band, interval_s
from simulators.evidence.lookup import BEST
from simulators.kernels.families.family import Entry, entry_of
from simulators.kernels.levels import profile_of
from simulators.kernels.price import Priced, price


def kernel_rows(part: Rows, predicted_s: Floats, **cells: Any) -> pl.DataFrame:
    """Return measured kernels beside their predicted seconds."""
    labels = {"gpu": part.gpu, "framework": part.framework, "kernel": part.kernel}
    return columns(
        predicted=predicted_s, measured=part.seconds, **{**labels, "dtype": part.dtype, **cells}
    )


def priced(part: Rows, answer: Priced, **cells: Any) -> pl.DataFrame:
    """Return measured kernels beside an answer of `price`, with its interval."""
    return kernel_rows(part, answer.latency_s, lo=answer.lo_s, hi=answer.hi_s, **cells)


def shipped_price(part: Rows) -> Priced:
    """Return what `price` answers about rows, for kernels of the framework they are of."""
    return price(part.operator, load_gpu(part.gpu), framework=part.framework)


def as_shipped(part: Rows, **cells: Any) -> pl.DataFrame:
    """Return measured kernels beside what `price` answers about them."""
    return priced(part, shipped_price(part), **cells)


def entry_for(part: Rows, level: str = BEST) -> Entry | None:
    """Return the calibration entry by which attention or experts of some rows are priced."""
    gpu = load_gpu(part.gpu)
    profile = replace(profile_of(gpu, level), framework=part.framework)
    return entry_of(gpu, profile, part.kernel, formats_of(part))


def own_entry(part: Rows) -> Entry | None:
    """Return the entry that was fitted to such rows, if one was."""
    entry = entry_for(part)
    is_own = entry is not None and entry.calibrated and entry.framework == part.framework
    return entry if is_own else None


def by_entry(part: Rows, entry: Entry, **cells: Any) -> pl.DataFrame:
    """Return measured kernels beside their seconds by an entry, with its interval."""
    if not len(part):
        return pl.DataFrame(schema=EMPTY)
    predicted_s = fused_s(part, load_gpu(part.gpu), entry)
    lo_s, hi_s = interval_s(entry.band, predicted_s)
    return kernel_rows(part, predicted_s, lo=lo_s, hi=hi_s, **cells)


def in_turns(
    turns: Sequence[tuple[Floats, Floats]],
    band: Callable[[Sequence[tuple[Floats, Floats]]], Band],
    **cells: Any,
) -> pl.DataFrame:
    """Return predicted and measured seconds of turns, with the interval of all other turns."""
    frames = []
    for number, (predicted_s, measured_s) in enumerate(turns):
        others = [turn for at, turn in enumerate(turns) if at != number]
        ends = interval_s(band(others), predicted_s) if others else (predicted_s, predicted_s)
        lo, hi = ends
        frames.append(columns(predicted=predicted_s, measured=measured_s, lo=lo, hi=hi, **cells))
    return together(frames)


def band_of_turns(turns: Sequence[tuple[Floats, Floats]]) -> Band:
    """Return the band of several turns together."""
    return band_of(*(np.concatenate(column) for column in zip(*turns, strict=True)))
