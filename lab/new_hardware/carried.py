"""Kernels timed on one GPU, carried to another by waves of tiles.

Habitat scales a kernel's time by the waves it takes on either GPU (Yu et al., "Habitat: a runtime-
based computational performance predictor for deep neural network training", 2021). Here the tile
model of either GPU stands for its waves, fitted to what is measured on it: in full on the first, to
the data sheet or to a few rows on the second. What a model of tiles misses is the library's doing,
the kernels it chooses and the strides it is slow at, and goes along in three parts: what was missed
on the first GPU, by what else the two models differ, and what the calibrations of other boards like
the second say of their libraries. How far each counts is a guess before any row of the second GPU,
and a regression after. What is then still missed is carried over to sizes nearby.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lab.fits.methods.fp32_forms import fit_few
from lab.new_hardware.residuals import alike, carried_over
from lab.tables.rows import Bools, Floats, Groups, Rows, mixed_group_of
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.boards import boards, identity_of, of_architecture
from simulators.evidence.borrowing import ARCHITECTURE, GENERATION, relation_of
from simulators.kernels.levels import profile_of, zero_shot_profile
from simulators.kernels.price import call_seconds

COUNTED_OF_KIN, COUNTED_OF_OTHERS = (0.5, 0.5, 0.5), (0.15, 0.0, 0.7)
"""How far each part goes along before any row of the second GPU says so: where it is of the first
one's architecture or of the generation next to it, and runs much the same library, and elsewhere.
Chosen between NVIDIA's boards alone, on shapes that no claim looks at."""

UNSURE, UNSURE_LEVEL = 0.3, 0.1
"""Standard deviations of that, and of the log of all times together."""

BATCH = 0.5
"""What an octave of the batch counts of one of another size: it repeats what a kernel does."""

FAR, SCATTER = 6.0, 0.1
"""Octaves that rows to measure tell of each other, and variance of each beside that of them all."""

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
    apart = np.log(near_s / far_s)
    parts = np.stack(
        [np.log(rows.seconds / near_s), apart - np.median(apart), habits(rows, target)]
    )
    relation, _ = relation_of(target.architecture, source.architecture)
    are_kin = relation in (ARCHITECTURE, GENERATION)
    counted = np.array(COUNTED_OF_KIN if are_kin else COUNTED_OF_OTHERS)
    said = np.log(far_s) + counted @ parts
    _, first, second = np.intersect1d(_sizes(rows), _sizes(own), return_indices=True)
    if first.size:
        trends = np.stack([np.full(len(rows), UNSURE_LEVEL), *(UNSURE * parts)], axis=1)
        missed = np.log(own.seconds[second]) - said[first]
        said += carried_over(_octaves(rows), trends, first, missed)
    return np.asarray(np.exp(said), np.float64)


def habits(rows: Rows, gpu: Gpu) -> Floats:
    """Return what tile models miss on boards like a GPU, in log seconds: their corrections' mean.

    Boards are those of its architecture that were calibrated in full, else of its vendor, else all;
    never itself.
    """
    others = [board for board in boards() if board.name != gpu.name]
    peers = [board for board in others if board.vendor == gpu.vendor] or others
    found = [
        _habit(rows, load_gpu(board.name)) for board in of_architecture(gpu.architecture, peers)
    ]
    return np.asarray(np.mean(found, axis=0), np.float64)


def _habit(rows: Rows, board: Gpu) -> Floats:
    whole = profile_of(board)
    tiles = {label: replace(rates, correction=None) for label, rates in whole.gemm.items()}
    plain_s = call_seconds(rows.operator, board, replace(whole, gemm=tiles))
    return np.log(call_seconds(rows.operator, board, whole) / plain_s)


def telling(rows: Rows, count: int) -> Bools:
    """Return which rows to measure on a second GPU: those that tell most of all the others.

    Each is the one that leaves the least unsure together with those before it, if rows tell of each
    other by how near they lie in sizes and in time on the first GPU.
    """
    chosen = np.zeros(len(rows), bool)
    octaves = _octaves(rows)
    unsure = alike(octaves, octaves, FAR)
    for _ in range(min(count, len(rows) // 2)):
        spread = np.diag(unsure) + SCATTER
        gain = np.where(chosen, -1.0, (unsure**2).sum(axis=0) / spread)
        best = int(np.argmax(gain))
        chosen[best] = True
        unsure = unsure - np.outer(unsure[:, best], unsure[best]) / spread[best]
    return chosen


def _octaves(rows: Rows) -> Floats:
    """Return a row per call: its sizes, and its time on the first GPU, in octaves."""
    counts = {"batch": BATCH}
    sizes = [
        counts.get(n, 1.0) * np.log2(np.maximum(rows.sizes[n], 1.0)) for n in sorted(rows.sizes)
    ]
    return np.stack([*sizes, np.log2(rows.seconds / FINEST_S)], axis=1)


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
