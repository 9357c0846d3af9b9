"""Kernels timed on one GPU, carried to another by waves of tiles.

Habitat scales a kernel's time by the waves it takes on either GPU (Yu et al., "Habitat: a runtime-
based computational performance predictor for deep neural network training", 2021). Here the tile
model of either GPU stands for its waves, fitted to what is measured on it: in full on the first, to
the data sheet or to a few rows on the second. What the model missed on the first GPU goes along as
far as the second's rows say: the library may choose other kernels there. Where those rows fit a
plain multiple of the first GPU's times better, as between GPUs of one kind, that counts for more.
What is then still missed is carried over to sizes nearby.
"""

from __future__ import annotations

import numpy as np

from lab.fits.methods.fp32_forms import fit_few
from lab.new_hardware.residuals import carried_over
from lab.tables.rows import Bools, Floats, Groups, Rows, evenly, mixed_group_of
from simulators.catalog.gpu import Gpu
from simulators.evidence.boards import identity_of
from simulators.kernels.levels import zero_shot_profile
from simulators.kernels.price import call_seconds

DOUBT = 0.2
"""Squared logs of misses that must be seen before half of their agreement counts: a choice."""


NUMBERS = 4
"""Fitted to the second GPU's rows: three of the tile model, and how much of a miss goes along."""


FINEST_S = 1e-9
"""Unit in which times on the first GPU are a size as any other."""


def carried_s(rows: Rows, source: Gpu, target: Gpu, own: Rows) -> Floats:
    """Return what calls of one class of operators take on a second GPU.

    Args:
        rows: the calls, with their times on the first.
        source: the first GPU.
        target: the second.
        own: what was measured on the second, of any shapes; there may be none.
    """
    near_s = _modelled_s(rows, source, rows)
    far_s = _modelled_s(rows, target, own)
    missed = np.log(rows.seconds / near_s)
    _, first, second = np.intersect1d(_sizes(rows), _sizes(own), return_indices=True)
    there, here = missed[first], np.log(own.seconds[second] / far_s[first])
    share = float(np.sum(there * here) / (DOUBT + np.sum(there**2)))
    modelled = np.log(far_s) + np.clip(share, 0.0, 1.0) * missed
    if first.size <= NUMBERS:
        return np.asarray(np.exp(modelled), np.float64)
    scaled = np.log(rows.seconds) + np.median(np.log(own.seconds[second] / rows.seconds[first]))
    seen, freedom = np.log(own.seconds[second]), first.size / (first.size - NUMBERS)
    by_model = freedom * np.mean((modelled[first] - seen) ** 2)
    by_scale = np.mean((scaled[first] - seen) ** 2)
    weight = by_scale**2 / (by_model**2 + by_scale**2)
    said = weight * modelled + (1.0 - weight) * scaled
    columns = [rows.sizes[name] for name in sorted(rows.sizes)]
    octaves = np.log2(np.maximum([*columns, rows.seconds / FINEST_S], 1.0)).T
    return np.asarray(np.exp(said + carried_over(octaves, first, seen - said[first])), np.float64)


def telling(rows: Rows, count: int) -> Bools:
    """Return which rows to measure on a second GPU: spread evenly over the times on the first.

    Times bound by dispatch, by bandwidth and by arithmetic lie at different lengths, and sizes that
    are alike teach the same twice.
    """
    chosen = np.zeros(len(rows), bool)
    order = np.argsort(rows.seconds, kind="stable")
    chosen[order[evenly(len(rows), min(count, len(rows) // 2))]] = count > 0
    return chosen


def _modelled_s(rows: Rows, gpu: Gpu, measured: Rows) -> Floats:
    """Return what the tile model says, given the data sheet and what was measured on the GPU."""
    profile = zero_shot_profile(identity_of(gpu))
    if len(measured):
        profile = fit_few(measured, gpu, profile)
    return call_seconds(rows.operator, gpu, profile)


def ratios(source: Gpu, target: Gpu) -> dict[str, float]:
    """Return by what times would change if nothing but bandwidth, or FLOP/s, mattered."""
    return {
        "bandwidth": source.hbm_bytes_per_s / target.hbm_bytes_per_s,
        "FLOP/s": source.peak_flops["fp32"] / target.peak_flops["fp32"],
    }


def in_common(one: Rows, other: Rows) -> tuple[Rows, Rows]:
    """Return rows of two GPUs with equal sizes, one each, in the same order."""
    _, first, second = np.intersect1d(_sizes(one), _sizes(other), return_indices=True)
    return one.where(first), other.where(second)


def _sizes(rows: Rows) -> Groups:
    """Return a number of each row's sizes; groups that are split together may differ in a batch."""
    return mixed_group_of(rows.sizes[name] for name in sorted(rows.sizes))
