"""Predict the times of fp32 operators on one GPU from times measured on another.

Habitat scales a kernel's time by the number of waves on either GPU (Yu et al., "Habitat: a runtime-
based computational performance predictor for deep neural network training", 2021). Here the tile
model of each GPU replaces the waves. The model of the source is fitted to all its rows, the model
of the target to the data sheet or a few rows. Three corrections are added in log seconds: the
residual on the source, the remaining difference between the two models, and the mean correction of
libraries on GPUs similar to the target. Without rows of the target the corrections have fixed
weights; with rows, a regression finds the weights, and a Gaussian process with Student-t noise
interpolates the remaining residuals over sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from planning.calibrate.kernels import fit_few
from planning.calibrate.measurements import Sizes, TimedCalls, Timings, read_timings, relative_error
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.jit import Floats, Ints
from simulators.evidence.default_rates import identity_of, measured_gpus, of_architecture
from simulators.evidence.transfer import ARCHITECTURE, GENERATION, relation_of
from simulators.kernels.levels import profile_of, zero_shot_profile
from simulators.kernels.price import call_seconds

SHARES_OF_SIMILAR, SHARES_OF_OTHERS = (0.5, 0.5, 0.5), (0.15, 0.0, 0.7)
"""Weight of each correction without rows of the target: for a GPU of the source's architecture or
an adjacent generation, and for other GPUs. Chosen on NVIDIA GPUs and shapes that no claim uses."""
SHARE_DEVIATION, LEVEL_DEVIATION = 0.3, 0.1
"""Prior standard deviations of the weights, and of the log of a factor common to all times."""
BATCH_WEIGHT = 0.5
"""Weight of an octave of the batch size relative to other sizes: a batch repeats the same work."""
ROW_CHOICE_LENGTH_SCALE, ROW_CHOICE_NOISE = 6.0, 0.1
"""Length scale in octaves for choosing rows to measure, and noise variance relative to the rest."""
UNIT_S = 1e-9
"""Unit in which the time on the source is a size like any other."""
MAX_COMPARED_ROWS = 2000
"""Rows of a class among which the rows to measure are chosen; evenly spaced if there are more."""

LENGTH_SCALES, SIGNALS = (1.0, 2.0, 4.0, 8.0), (0.05, 0.1, 0.2, 0.4)
"""Grids of the Gaussian process over residuals: length scale in octaves, standard deviation in log
seconds. A deviation of zero is tried, too."""
NOISES = (0.03, 0.06, 0.12, 0.24)
FREEDOM, ROUNDS = 2.0, 3
"""Degrees of freedom of the Student-t noise, and rounds of reweighting."""


@dataclass(frozen=True)
class Transferred:
    """Predictions of one operator class on the target, with errors on held-out rows."""

    rows: Timings  # of the source
    seconds: Floats  # on the target
    own: int = 0  # number of measured rows of the target
    error: float = np.nan
    naive: float = np.nan  # error of scaling by bandwidth or by FLOP/s, the better of both

    @property
    def ratio(self) -> float:
        """Median of the time on the target over the time on the source."""
        return float(np.median(self.seconds / self.rows.seconds))


def transfer(source: str, target: str, measured: Path, own: Path | None) -> list[Transferred]:
    """Predict the times of the rows of a file on another GPU, by operator class.

    Args:
        source: data sheet of the GPU that was measured.
        target: data sheet of the other GPU.
        measured: rows of the source.
        own: rows of the target; half of them are held out for the errors.

    Raises:
        UserError: a file cannot be read or has no fp32 operator, or a data sheet is unknown.
    """
    start, end = load_gpu(source), load_gpu(target)
    theirs = {part.kernel: part for part in read_timings(own)} if own else {}
    parts = read_timings(measured)
    return [_transferred(part, start, end, theirs.get(part.kernel)) for part in parts]


def _transferred(part: Timings, start: Gpu, end: Gpu, own: Timings | None) -> Transferred:
    if own is None:
        nothing = part.where(np.zeros(len(part), bool))
        return Transferred(part, transferred_s(part, start, end, nothing))
    seconds, error, naive = transferred_s(part, start, end, own), np.nan, np.nan
    first, second = common_shapes(part.sizes, own.sizes)
    one, other = part.where(first), own.where(second)
    known = np.arange(len(other)) % 2 == 0
    if len(other) >= 2:
        seen = other.seconds[~known]
        predicted_s = transferred_s(one, start, end, other.where(known))
        error = relative_error(predicted_s[~known], seen)
        ratios = peak_ratios(start, end).values()
        naive = min(relative_error(one.seconds[~known] * ratio, seen) for ratio in ratios)
    return Transferred(part, seconds, len(own), error, naive)


def write_transferred(found: list[Transferred], target: str, file: Path) -> None:
    """Write predicted rows with the columns of `sweeper measure`."""
    labels = {"gpu": target, "kernel": "transferred"}
    rows = [{**row, **labels} for one in found for row in one.rows.to_rows(one.seconds)]
    pa.parquet.write_table(pa.Table.from_pylist(rows), file)


def write_rows_to_measure(measured: Path, count: int, file: Path) -> int:
    """Write the `count` most informative calls of each class, and return the number of rows.

    Raises:
        UserError: the file of measured rows cannot be read or has no fp32 operator.
    """
    rows = []
    for part in read_timings(measured):
        few = np.linspace(0, len(part) - 1, min(MAX_COMPARED_ROWS, len(part))).astype(np.int64)
        some = part.where(np.unique(few))
        chosen = some.where(most_informative(some, count))
        rows += chosen.to_rows(chosen.seconds)
    calls = pa.Table.from_pylist(rows).drop_columns("latency_us")
    pa.parquet.write_table(calls, file)
    return len(rows)


def transferred_s(rows: TimedCalls, source: Gpu, target: Gpu, own: TimedCalls) -> Floats:
    """Return the predicted seconds of calls of one operator class on the target.

    Args:
        rows: the calls, with their times on the source.
        source: the GPU on which `rows` were measured.
        target: the GPU to predict.
        own: rows measured on the target, of any shapes; may be empty.
    """
    near_s = _modelled_s(rows, source, rows)
    far_s = _modelled_s(rows, target, own)
    apart = np.log(near_s / far_s)
    residual = np.log(rows.seconds / near_s)
    parts = np.stack([residual, apart - np.median(apart), library_corrections(rows, target)])
    relation, _ = relation_of(target.architecture, source.architecture)
    similar = relation in (ARCHITECTURE, GENERATION)
    predicted = np.log(far_s) + np.array(SHARES_OF_SIMILAR if similar else SHARES_OF_OTHERS) @ parts
    first, second = common_shapes(rows.sizes, own.sizes)
    if first.size:
        level = np.full(len(rows), LEVEL_DEVIATION)
        trends = np.stack([level, *(SHARE_DEVIATION * parts)], axis=1)
        missed = np.log(own.seconds[second]) - predicted[first]
        predicted += interpolated(_octaves(rows), trends, first, missed)
    return np.asarray(np.exp(predicted), np.float64)


def library_corrections(rows: TimedCalls, gpu: Gpu) -> Floats:
    """Return the mean correction of tile models on similar GPUs, in log seconds by call.

    Similar GPUs are fully calibrated GPUs of the architecture, else of the vendor, else all.
    """
    others = [other for other in measured_gpus() if other.name != gpu.name]
    peers = [other for other in others if other.vendor == gpu.vendor] or others
    found = []
    for other in of_architecture(gpu.architecture, peers):
        like = load_gpu(other.name)
        whole = profile_of(like)
        tiles = {label: replace(rates, correction=None) for label, rates in whole.gemm.items()}
        plain_s = call_seconds(rows.operator, like, replace(whole, gemm=tiles))
        found.append(np.log(call_seconds(rows.operator, like, whole) / plain_s))
    return np.asarray(np.mean(found, axis=0), np.float64)


def most_informative(rows: TimedCalls, count: int) -> NDArray[np.bool_]:
    """Return a mask of the rows to measure on a second GPU.

    Each step chooses the row that leaves the least variance (greedy), where the correlation of two
    rows falls with their distance in sizes and in time on the first GPU.
    """
    chosen = np.zeros(len(rows), bool)
    octaves = _octaves(rows)
    variance = correlation(octaves, octaves, ROW_CHOICE_LENGTH_SCALE)
    for _ in range(min(count, len(rows) // 2)):
        spread = np.diag(variance) + ROW_CHOICE_NOISE
        gain = np.where(chosen, -1.0, (variance**2).sum(axis=0) / spread)
        best = int(np.argmax(gain))
        chosen[best] = True
        variance = variance - np.outer(variance[:, best], variance[best]) / spread[best]
    return chosen


def interpolated(octaves: Floats, trends: Floats, seen: Ints, missed: Floats) -> Floats:
    """Return residuals at all calls, interpolated from the residuals at some; in log seconds.

    Args:
        octaves: sizes as logarithms to the base of two: a row per call, a column per size.
        trends: a row per call, a column per trend, scaled by the prior deviation of its factor.
        seen: positions of the calls with a known residual.
        missed: residuals at these positions.

    >>> octaves = np.array([[10.0], [11.0], [12.0], [30.0]])
    >>> seen, missed = np.array([0, 2]), np.array([0.2, 0.2])
    >>> interpolated(octaves, 0.0 * octaves, seen, missed).round(1).tolist()
    [0.2, 0.2, 0.2, 0.0]
    """
    together = trends @ trends[seen].T
    choices = [(1.0, 0.0, noise) for noise in NOISES]
    choices += list(product(LENGTH_SCALES, SIGNALS, NOISES))
    near = {scale: correlation(octaves[seen], octaves[seen], scale) for scale in LENGTH_SCALES}
    weights = np.ones(missed.size)

    def inverse(choice: tuple[float, float, float]) -> Floats:
        scale, signal, noise = choice
        found = together[seen] + signal**2 * near[scale] + np.diag(noise**2 / weights)
        return np.asarray(np.linalg.inv(found), np.float64)

    def loss(choice: tuple[float, float, float]) -> float:
        """Return the negative log likelihood of each residual given the others, plus a constant."""
        off, precision = _left_out(inverse(choice), missed)
        tails = (FREEDOM + 1.0) * np.log1p(off**2 * precision / FREEDOM)
        return float(np.sum(tails - np.log(precision)))

    for _ in range(ROUNDS):
        best = min(choices, key=loss)
        kept = inverse(best)
        off, precision = _left_out(kept, missed)
        weights = (FREEDOM + 1.0) / (FREEDOM + off**2 * precision)
    scale, signal, _ = best
    covariance = together + signal**2 * correlation(octaves, octaves[seen], scale)
    return np.asarray(covariance @ (kept @ missed), np.float64)


def _left_out(inverse: Floats, missed: Floats) -> tuple[Floats, Floats]:
    """Return each residual's error as predicted by the others, and the precision of the error."""
    precision = np.diag(inverse)
    return (inverse @ missed) / precision, precision


def correlation(one: Floats, other: Floats, length_scale: float) -> Floats:
    """Return the squared-exponential correlation of the rows of two matrices (rows by rows)."""
    squares = ((one[:, None] - other[None]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-squares / (2.0 * length_scale**2)), np.float64)


def _octaves(rows: TimedCalls) -> Floats:
    """Return the sizes and the time on the source in octaves: a row per call."""
    sizes = [
        (BATCH_WEIGHT if name == "batch" else 1.0) * np.log2(np.maximum(rows.sizes[name], 1.0))
        for name in sorted(rows.sizes)
    ]
    return np.stack([*sizes, np.log2(rows.seconds / UNIT_S)], axis=1)


def _modelled_s(rows: TimedCalls, gpu: Gpu, measured: TimedCalls) -> Floats:
    """Return the seconds by the tile model of a GPU, fitted to measured rows if there are any."""
    profile = zero_shot_profile(identity_of(gpu))
    if len(measured):
        profile = fit_few(measured, gpu, profile)
    return call_seconds(rows.operator, gpu, profile)


def peak_ratios(source: Gpu, target: Gpu) -> dict[str, float]:
    """Return the ratio of target to source time if only bandwidth, or only FLOP/s, mattered."""
    return {
        "bandwidth": source.hbm_bytes_per_s / target.hbm_bytes_per_s,
        "FLOP/s": source.peak_flops["fp32"] / target.peak_flops["fp32"],
    }


def common_shapes(one: Sizes, other: Sizes) -> tuple[Ints, Ints]:
    """Return the positions of shapes that two tables share, each once, in the same order."""
    _, first, second = np.intersect1d(_hashes(one), _hashes(other), return_indices=True)
    return first, second


def _hashes(sizes: Sizes) -> NDArray[np.uint64]:
    """Return a hash of each shape, by splitmix64 (Steele, Lea and Flood, 2014)."""
    x: NDArray[np.uint64] = np.zeros(1, np.uint64)
    for name in sorted(sizes):
        x = (x ^ sizes[name].astype(np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return x
