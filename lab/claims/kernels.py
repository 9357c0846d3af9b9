"""Measured kernels beside predicted ones, as frames of predictions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from lab.claims.predictions import EMPTY, columns, together
from lab.fits.intervals.fp32_errors import FEW_ROWS, SEEDS, few_shot_exercise
from lab.fits.kernels.decode_attention import octaves_left_out
from lab.fits.kernels.fused_kernels import (
    FEWEST_MODELS,
    LEFT_OUT_ROWS,
    band_of_groups,
    left_out,
    predicted_s,
)
from lab.fits.kernels.fused_kernels import predicted_s as fused_s
from lab.fits.kernels.tensor_cores import IN_LAYERS, seconds_of
from lab.fits.kernels.transferred_kernels import costs_of
from lab.fits.methods.held_out import band_of
from lab.fits.methods.power_meter import SETTLED_S, meter_of, reading_w
from lab.fits.methods.transfer_trials import Trial, formats_of, trials
from lab.tables.fp32 import FAULTY, catalog_name, read_rows
from lab.tables.fused_kernels import (
    CHUNK_GPUS,
    FRONTIER_GPUS,
    GPUS,
    MIXED_GPUS,
    SERVING_GPUS,
    models_of,
    octaves_of,
    read_chunks,
    read_layers,
    read_measured,
)
from lab.tables.rows import BANDED, Floats, Rows, evenly, is_host_timed, mape, read_table
from lab.tables.tensor_kernels import (
    AUXILIARY_GPUS,
    LAYER_GPUS,
    POWER_TABLES,
    PRODUCERS,
    meter_name,
    read_auxiliary_rows,
    read_chain_rows,
    read_layer_products,
    read_power_rows,
    read_tensor_rows,
)
from planning.calibrate.kernels import band_by_rows
from planning.calibrate.transfer import (
    common_shapes,
    most_informative,
    peak_ratios,
    transferred_s,
)
from simulators.catalog.gpu import load_gpu
from simulators.evidence.calibration_files import calibrations
from simulators.evidence.default_rates import identity_of, measured_gpus
from simulators.evidence.intervals import Band, interval_s
from simulators.evidence.lookup import BEST, DEFAULT_FRAMEWORK
from simulators.evidence.transfer import SHEET, VENDOR, Errors, TransferError, error_of, rank
from simulators.kernels.energy import (
    energy_j,
    measured_power,
    modelled_w,
    power_model_from,
    power_w,
)
from simulators.kernels.families.family import Entry, entry_of
from simulators.kernels.levels import measured_rates, profile_of, zero_shot_profile
from simulators.kernels.price import Priced, price, price_call, roofline_s
from simulators.kernels.simulator import Schedule, held_to
from simulators.workload.operators import Gemm


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
    for number, (ours_s, theirs_s) in enumerate(turns):
        others = [turn for at, turn in enumerate(turns) if at != number]
        ends = interval_s(band(others), ours_s) if others else (ours_s, ours_s)
        lo, hi = ends
        frames.append(columns(predicted=ours_s, measured=theirs_s, lo=lo, hi=hi, **cells))
    return together(frames)


def band_of_turns(turns: Sequence[tuple[Floats, Floats]]) -> Band:
    """Return the band of several turns together."""
    return band_of(*(np.concatenate(column) for column in zip(*turns, strict=True)))


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
"""Classes of operators that are reported together."""


def full(reference: Path) -> pl.DataFrame:
    """Return held-out shapes of GPUs with a calibration."""
    frames = []
    for part in read_rows(reference)[0]:
        gpu = load_gpu(part.gpu)
        if profile_of(gpu).level == "full" and part.held_out.any():
            rows = part.where(part.held_out)
            answer = price_call(rows.operator, gpu, profile_of(gpu))
            frames.append(priced(rows, answer, family=FAMILY_OF[part.kernel]))
    return together(frames)


def data_sheet(reference: Path) -> pl.DataFrame:
    """Return all shapes of every GPU as if only its data sheet were known."""
    frames = []
    for part in read_rows(reference)[0]:
        gpu, rows = load_gpu(part.gpu), part.layers
        answer = price_call(rows.operator, gpu, zero_shot_profile(identity_of(gpu)))
        roof_s = roofline_s(rows.operator, gpu)
        frames.append(priced(rows, answer, family=FAMILY_OF[part.kernel], baseline=roof_s))
    return together(frames)


def few_rows(reference: Path) -> pl.DataFrame:
    """Return the other shapes of every GPU, given ten rows of each operator, by draw."""
    return together(
        frame
        for part in read_rows(reference)[0]
        if FAMILY_OF[part.kernel] != "conv"
        for frame in _draws(part.layers)
    )


def _draws(rows: Rows) -> Iterator[pl.DataFrame]:
    gpu = load_gpu(rows.gpu)
    blank = zero_shot_profile(identity_of(gpu))
    others = [one.name for one in measured_gpus() if one.name != gpu.name]
    for draw in range(SEEDS):
        one = few_shot_exercise(rows, gpu, blank, FEW_ROWS, draw)
        lo_s, hi_s = interval_s(band_by_rows(rows.kernel, one.missed, others), one.predicted_s)
        yield columns(
            predicted=one.predicted_s,
            measured=one.measured_s,
            lo=lo_s,
            hi=hi_s,
            gpu=rows.gpu,
            family=FAMILY_OF[rows.kernel],
            draw=draw,
        )


COUNTS = (10, 50)
CLASSES = ("linear", "bmm")
FEWEST = 60
"""Shapes in common below which a pair is left out: half of them may be drawn."""


MOST_SHAPES = 200
"""Shapes of a pair, evenly spaced: all of them would take a minute, and say the same."""


def transfer_pairs(reference: Path) -> pl.DataFrame:
    """Return the mean error of each pair of GPUs in percent, ours and the naive one's."""
    measured, _ = read_rows(reference)
    rows = []
    for kernel in CLASSES:
        gpus = {part.gpu: part.layers for part in measured if part.kernel == kernel}
        for count in COUNTS:
            for label, ours, naive in _pairs(gpus, count):
                cells = {"kernel": kernel, "count": count, "label": label, "baseline": naive}
                rows.append({**cells, "predicted": ours, "is_worse": ours >= naive})
    return pl.DataFrame(rows)


def _pairs(by_gpu: Mapping[str, Rows], count: int) -> Iterator[tuple[str, float, float]]:
    for source, target in itertools.permutations(by_gpu, 2):
        first, second = common_shapes(by_gpu[source].sizes, by_gpu[target].sizes)
        one, other = by_gpu[source].where(first), by_gpu[target].where(second)
        if len(other) < FEWEST:
            continue
        some = evenly(len(one), MOST_SHAPES)
        one, other = one.where(some), other.where(some)
        start, end = load_gpu(source), load_gpu(target)
        known = most_informative(one, count)
        said, seen = (
            transferred_s(one, start, end, other.where(known))[~known],
            other.seconds[~known],
        )
        plain = [mape(one.seconds[~known] * r, seen) for r in peak_ratios(start, end).values()]
        yield (
            f"{source} to {target}",
            100.0 * mape(said, seen),
            100.0 * min(plain),
        )


PRODUCTS = "gpu_kernels/gemm.parquet"
COLUMNS = ("gpu", "split", "m", "n", "k", "latency_us", "tile_a", "tile_b", "grid_z")
MOST_PRODUCTS = 600
"""Products of a GPU, evenly spaced in its table: tile_pairs grow with their square."""

ALIKE = np.log(1.1)
"""Work that differs by less is equal, and so are times."""


@dataclass(frozen=True)
class Tiled:
    """Products of a GPU, with the rows, columns and shares that the library cut them by."""

    gpu: str
    sizes: tuple[Floats, Floats, Floats]
    seconds: Floats
    schedules: NDArray[np.int64]  # a row each: rows and columns of the tile, shares of k

    def seconds_by(self, schedule: Schedule, which: NDArray[np.bool_]) -> Floats:
        """Return seconds of selected products under one schedule, fitted to other GPUs."""
        gpu = load_gpu(self.gpu)
        m, n, k = (size[which] for size in self.sizes)
        profile = held_to(profile_of(gpu, "zero_shot"), schedule)
        return price_call(Gemm(name="product", m=m, n=n, k=k, dtype="fp32"), gpu, profile).latency_s


def tile_pairs(reference: Path) -> pl.DataFrame:
    """Return the predicted and measured ratio of times of two products of equal work, by GPU."""
    return together(
        columns(predicted=predicted, measured=measured, gpu=one.gpu)
        for one in _measured_gpus(reference)
        for predicted, measured in [_ratios(one)]
    )


def _measured_gpus(reference: Path) -> Iterator[Tiled]:
    table = read_table(reference / PRODUCTS, COLUMNS, op="linear")
    column = {name: table[name].to_numpy() for name in COLUMNS}
    for gpu in np.unique(column["gpu"]).tolist():
        name = catalog_name(gpu)
        mine = (column["gpu"] == gpu) & (column["tile_a"] > 0)
        for gpu, op, split in FAULTY:
            mine &= (gpu, op) != (name, "linear") or column["split"] != split
        if load_gpu(name).vendor != "nvidia":
            continue  # another library's names, whose grids follow other rules
        some = np.flatnonzero(mine)[evenly(int(mine.sum()), MOST_PRODUCTS)]
        m, n, k = (column[size][some].astype(np.float64) for size in ("m", "n", "k"))
        cut = np.stack([column[c][some] for c in ("tile_b", "tile_a", "grid_z")], axis=1)
        yield Tiled(name, (m, n, k), 1e-6 * column["latency_us"][some], cut.astype(np.int64))


def _ratios(gpu: Tiled) -> tuple[Floats, Floats]:
    """Return the ratios of all tile_pairs of equal work that took unequal times."""
    predicted_s = np.zeros(gpu.seconds.size)
    for cut in np.unique(gpu.schedules, axis=0):
        which = (gpu.schedules == cut).all(axis=1)
        predicted_s[which] = gpu.seconds_by(Schedule(*cut.tolist()), which)
    one, other = np.triu_indices(gpu.seconds.size, 1)
    predicted, measured, work = (
        v[one] / v[other] for v in (predicted_s, gpu.seconds, np.prod(gpu.sizes, axis=0))
    )
    apart = (np.abs(np.log(work)) < ALIKE) & (np.abs(np.log(measured)) > ALIKE)
    return predicted[apart], measured[apart]


def products(reference: Path) -> pl.DataFrame:
    """Return products whose matrices were held out, on GPUs with numbers of their own."""
    known = {gpu: measured_rates(gpu) for gpu in calibrations("tensor")}
    return together(
        as_shipped(part.where(part.held_out))
        for part in read_tensor_rows(reference, PRODUCERS)
        if part.held_out.any()
        and (part.framework, part.dtype) in known.get(load_gpu(part.gpu).name, {})
    )


def transfers(reference: Path, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Return the same as if only the GPU's data sheet and one other GPU were known.

    Args:
        reference: the folder of reference tables.
        pairs: the GPU whose numbers are used, and the one that is predicted.
    """
    frames = []
    parts = [p for p in read_tensor_rows(reference, PRODUCERS) if p.framework == DEFAULT_FRAMEWORK]
    for source, target in pairs:
        for part in parts:
            rates = measured_rates(source).get((part.framework, part.dtype))
            if part.gpu == target and rates is not None and part.held_out.any():
                rows, gpu = part.where(part.held_out), load_gpu(target)
                least_s = roofline_s(rows.operator, gpu)
                predicted_s = np.maximum(seconds_of(rows, rates, gpu), least_s)
                frames.append(kernel_rows(rows, predicted_s, source=source))
    return together(frames)


def in_layers(reference: Path) -> pl.DataFrame:
    """Return products and pointwise chains that were timed in the layers of an engine.

    Rows are held-out ones where a GPU was fitted to such layers, else all of them.
    """
    frames = []
    for gpu in LAYER_GPUS:
        for part in read_layer_products(reference, gpu):
            rows = part.where(part.held_out) if gpu in IN_LAYERS else part
            frames.append(as_shipped(rows, name=f"{part.framework} {part.dtype} product in layers"))
        frames += [
            as_shipped(part.where(part.held_out), name=part.name)
            for part in read_chain_rows(reference, gpu)
        ]
    return together(frames)


def auxiliary(reference: Path) -> pl.DataFrame:
    """Return auxiliary kernels of calibrated engines whose shapes were held out."""
    frames = []
    for gpu in AUXILIARY_GPUS:
        by_kernel: dict[tuple[str, str], list[Rows]] = {}
        for part in read_auxiliary_rows(reference, gpu):
            rows = part.where(part.held_out)
            by_kernel.setdefault((part.framework, part.kernel), []).append(rows)
        for parts in by_kernel.values():
            frames += _calibrated([part for part in parts if len(part)])
    return together(frames)


def _calibrated(parts: Sequence[Rows]) -> list[pl.DataFrame]:
    """Return the rows of one kernel, unless some are transferred from another GPU."""
    answers = [shipped_price(part) for part in parts]
    if not all(answer.calibrated for answer in answers):
        return []
    return [
        priced(part, answer, is_unseen=part.bucket >= BANDED)
        for part, answer in zip(parts, answers, strict=True)
    ]


BATCHES = {"prefill": "prefix chunks", "decode": "decodes of those tables"}


def prompts(reference: Path) -> pl.DataFrame:
    """Return held-out prompts of GPUs and engines with numbers of their own."""
    return together(
        by_entry(part.where(part.held_out), entry)
        for kernel in ("prefill", "mla_prefill")
        for gpu in GPUS
        for part in read_measured(reference, gpu, kernel)
        if (entry := own_entry(part)) is not None and part.held_out.any()
    )


def unseen(reference: Path) -> pl.DataFrame:
    """Return prompts, chunks and mixed batches that neither fits nor intervals have seen."""
    return together(
        by_entry(part.where(part.bucket >= BANDED), entry).with_columns(kernel=pl.lit(kernel))
        for kernel in ("prefill", "mla_prefill", "mixed")
        for gpu in GPUS
        for part in read_measured(reference, gpu, kernel) + read_chunks(reference, gpu, kernel)
        if (entry := own_entry(part)) is not None and (part.bucket >= BANDED).any()
    )


def batches(reference: Path) -> pl.DataFrame:
    """Return held-out chunks on a prefix, decodes and mixed batches, by whoever's numbers apply."""
    return together(_batches(reference))


def _batches(reference: Path) -> Iterator[pl.DataFrame]:
    for gpu in dict.fromkeys((*CHUNK_GPUS, *MIXED_GPUS)):
        for kernel in ("prefill", "decode", "mixed"):
            for part in read_chunks(reference, gpu, kernel):
                rows = part.where(part.held_out)
                if kernel != "mixed":
                    yield _by_any(rows, BATCHES[kernel])
                    continue
                mixed = rows.sizes["decodes"] > 0
                yield _by_any(rows.where(mixed), "mixed batches")
                yield _by_any(rows.where(~mixed), "prefix chunks as mixed batches")


def expert_layers(reference: Path) -> pl.DataFrame:
    """Return layers of experts of other tables: held-out rows of those that were fitted to."""
    frames = []
    for gpu in dict.fromkeys((*FRONTIER_GPUS, *SERVING_GPUS)):
        for part in read_layers(reference, gpu):
            rows = part.where(part.held_out) if gpu in FRONTIER_GPUS else part
            tokens = np.asarray(rows.sizes["num_tokens"])
            frames.append(_by_any(rows, "layers of experts", num_tokens=tokens))
    return together(frames)


def _by_any(rows: Rows, batch: str, **cells: object) -> pl.DataFrame:
    entry = entry_for(rows)
    assert entry is not None, f"no numbers apply to {rows.name}"
    return by_entry(rows, entry, batch=batch, numbers_of=entry.framework, **cells)


FORMATS = {
    "": ("bf16", "fp8"),
    "narrow ": ("fp8_block", "fp4", "w4a8"),
    "4-bit ": ("w4a16", "mxfp4"),
}
"""Formats of experts that share a line; weights of the last are unpacked to 16 bits."""


def octaves(reference: Path) -> pl.DataFrame:
    """Return decodes, every third octave of pairs and of tokens left out in turn."""
    return together(
        in_turns(
            octaves_left_out(part),
            band_of_turns,
            gpu=gpu,
            framework=part.framework,
            kernel=kernel,
        )
        for kernel in ("decode", "mla_decode")
        for gpu in GPUS
        for part in read_measured(reference, gpu, kernel)
        if own_entry(part) is not None
    )


def experts(reference: Path) -> pl.DataFrame:
    """Return layers of experts: models (also with skewed routing) or octaves of tokens left out."""
    return together(_experts(reference))


def _experts(reference: Path) -> Iterator[pl.DataFrame]:
    for gpu in GPUS:
        parts = read_measured(reference, gpu, "experts")
        for framework in dict.fromkeys(part.framework for part in parts):
            mine = [part for part in parts if part.framework == framework]
            for kind, formats in FORMATS.items():
                for dtype in formats:
                    for split, frame in _left_out(mine, dtype):
                        labels = {"gpu": gpu, "framework": framework, "kind": kind, "split": split}
                        yield frame.with_columns(**{n: pl.lit(v) for n, v in labels.items()})


def _left_out(parts: Sequence[Rows], dtype: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the rows of a format that fits did not see, by what was left out of them."""
    balanced = [part for part in parts if part.dtype == dtype and not part.variant]
    if not balanced or np.unique(models_of(balanced[0])).size < FEWEST_MODELS:
        return
    drawn = balanced[0].drawn(LEFT_OUT_ROWS)
    skewed = [p.drawn(LEFT_OUT_ROWS) for p in parts if p.dtype == dtype and p.variant]
    turns = []
    for aside, entry in left_out(drawn, models_of):
        turns.append((predicted_s(aside, load_gpu(aside.gpu), entry), aside.seconds))
        for part in skewed:
            same = part.where(models_of(part) == models_of(aside)[0])
            yield "model left out, skewed", by_entry(same, entry)
    yield "model left out", in_turns(turns, band_of_groups)
    for aside, entry in left_out(drawn, octaves_of):
        yield "octave left out", by_entry(aside, entry)


Ends = tuple[Floats, Floats]
"""The ends of intervals."""


@dataclass(frozen=True)
class LeftOut:
    """One way of leaving out: what is hidden with a kernel, and from where."""

    name: str
    key: Callable[[Trial], Hashable]  # of what is priced
    source_key: Callable[[Trial], Hashable]  # of the source of the numbers


WAYS = (
    LeftOut("GPU", lambda trial: trial.rows.gpu, lambda trial: trial.source),
    LeftOut(
        "architecture",
        lambda trial: load_gpu(trial.rows.gpu).architecture,
        lambda trial: (
            trial.source if trial.source == SHEET else load_gpu(trial.source).architecture
        ),
    ),
    LeftOut(
        "framework on a GPU",
        lambda trial: (trial.rows.gpu, trial.rows.framework),
        lambda trial: (trial.source, trial.source_framework),
    ),
)


def transferred(reference: Path) -> pl.DataFrame:
    """Return measured kernels beside the answer of the lookup, by what is left out."""
    found = trials(reference)
    return together(
        columns(
            predicted=trial.predicted_s,
            measured=trial.rows.seconds,
            lo=lo_s,
            hi=hi_s,
            case=" ".join(trial.case),
            kernel=trial.family if trial.rows.kernel == "gemm" else trial.rows.kernel,
            left_out=way.name,
        )
        for way in WAYS
        for trial, (lo_s, hi_s) in _chosen(found, way)
    )


def _chosen(found: Sequence[Trial], way: LeftOut) -> Iterator[tuple[Trial, Ends]]:
    """Yield the trial that the lookup takes for each kernel, and its interval."""
    cases: dict[tuple[str, ...], list[Trial]] = {}
    for trial in found:
        cases.setdefault(trial.case, []).append(trial)
    known: dict[Hashable, Errors] = {}
    for some in cases.values():
        key = way.key(some[0])
        if key not in known:
            known[key] = costs_of([t for t in found if key not in (way.key(t), way.source_key(t))])
        left = [trial for trial in some if way.source_key(trial) != key]
        if left:
            yield _choice(left, known[key])


def _choice(some: Sequence[Trial], costs: Errors) -> tuple[Trial, Ends]:
    """Return the first trial of the kind with the least error, and its interval."""

    def cost(trial: Trial) -> TransferError:
        return error_of(trial.family, trial.transfer.name, costs)

    def place(trial: Trial) -> Hashable:
        return trial.source, trial.source_framework, trial.transfer.same_precision

    nearer = {place(t) for t in some if t.transfer.relation != VENDOR and cost(t).error < math.inf}
    some = [t for t in some if t.transfer.relation != VENDOR or place(t) not in nearer]
    least = min(some, key=lambda trial: rank(cost(trial), trial.transfer))
    alike = [
        t
        for t in some
        if (t.source, t.source_framework, t.transfer)
        == (least.source, least.source_framework, least.transfer)
    ]
    best = next((trial for trial in alike if trial.whole == cost(trial).whole), least)
    return best, interval_s(cost(best).widened(best.band), best.predicted_s)


def readings(reference: Path) -> pl.DataFrame:
    """Return predicted and metered watts or joules, by figure, GPU and table."""
    return together(_readings(reference))


def _readings(reference: Path) -> Iterator[pl.DataFrame]:
    for part in read_power_rows(reference):
        rows = part.where(part.held_out)
        if is_host_timed(rows) or not len(rows):
            continue
        labels = {"gpu": part.gpu, "table": POWER_TABLES[part.kernel]}
        yield columns(predicted=_shown_w(rows), measured=rows.watts, figure="watts", **labels)
        long = rows.where(rows.seconds >= SETTLED_S)
        if not len(long):
            continue
        gpu = load_gpu(long.gpu)
        draw_w = power_w(long.operator, gpu, long.seconds)
        yield columns(predicted=draw_w, measured=long.watts, figure="settled draw", **labels)
        [other] = [metered for metered in calibrations("power") if metered != part.gpu]
        model = power_model_from(measured_power(other) or {}, whole=False)
        other_w = modelled_w(model, long.operator, gpu, long.seconds)
        figure = "settled draw, GPU left out"
        yield columns(predicted=other_w, measured=long.watts, figure=figure, **labels)
        if part.kernel == "gemm":
            ours_j = energy_j(long.operator, gpu, shipped_price(long).latency_s)
            theirs_j, figure = long.watts * long.seconds, "joules from the shape alone"
            yield columns(predicted=ours_j, measured=theirs_j, figure=figure, **labels)


def _shown_w(part: Rows) -> Floats:
    """Return what the meter shows of loops, times as measured."""
    gpu = load_gpu(part.gpu)
    correction = meter_of(gpu, meter_name(part))
    watts = power_w(part.operator, gpu, part.seconds)
    return (
        watts if correction is None else reading_w(correction, part.operator, part.seconds, watts)
    )
