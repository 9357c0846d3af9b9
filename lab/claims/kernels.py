"""Claims about kernels: fp32 calls, tensor-core products, attention, experts, transfer and power.

fp32 calls are judged at three levels of information. Full: GPUs with a calibration, on held-out
shapes. Few rows: GPUs left out of every fit, with ten rows per operator, in four draws. Data sheet:
every GPU as if only its data sheet were known. Errors are those of isolated calls and include the
host's dispatch, as the tables do.

Shapes of one model's layer are near copies of each other. Shapes held out at random would flatter a
fit of decode attention or experts, so whole models and octaves of tokens are left out instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import EMPTY, columns, together
from lab.fits.kernels import fused_kernels as fused_fits
from lab.fits.kernels.decode_attention import octaves_left_out
from lab.fits.kernels.fp32_kernels import FEW_ROWS, SEEDS, few_shot_exercise
from lab.fits.kernels.power import SETTLED_S, meter_of, reading_w
from lab.fits.kernels.tensor_cores import IN_LAYERS, seconds_of
from lab.fits.kernels.transferred_kernels import Trial, costs_of, formats_of, trials
from lab.fits.methods import band_of
from lab.tables import fused_kernels as fused
from lab.tables import tensor_kernels as tensor
from lab.tables.fp32 import FAULTY, catalog_name, read_rows
from lab.tables.rows import BANDED, Floats, Rows, by_labels, evenly, is_host_timed, mape, read_table
from planning.calibrate import transfer
from planning.calibrate.kernels import band_by_rows
from simulators.catalog.gpu import load_gpu
from simulators.evidence.default_rates import identity_of, measured_gpus
from simulators.evidence.intervals import Band, interval_s
from simulators.evidence.lookup import DEFAULT_FRAMEWORK, calibrations
from simulators.evidence.transfer import SHEET, VENDOR, Errors, TransferError, error_of, rank
from simulators.kernels import energy
from simulators.kernels.families.family import Entry, entry_of
from simulators.kernels.levels import measured_rates, profile_of, zero_shot_profile
from simulators.kernels.price import Priced, price, price_call, roofline_s
from simulators.kernels.simulator import Schedule, with_schedule
from simulators.workload.operators import Gemm

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
"""The family in which errors of an fp32 operator class are reported."""

TRANSFER_ROWS = (10, 50)
"""Numbers of rows of the target GPU that a transfer may use."""
MIN_SHAPES, MAX_SHAPES = 60, 200
"""Common shapes that a pair of GPUs must have, and the number that is evaluated (evenly spaced)."""

TILED = "gpu_kernels/gemm.parquet"
TILE_COLUMNS = ("gpu", "split", "m", "n", "k", "latency_us", "tile_a", "tile_b", "grid_z")
MAX_PRODUCTS = 600
"""Products per GPU, evenly spaced: the number of pairs grows with the square."""
SIMILAR = np.log(1.1)
"""Largest difference of log work, or log time, of two products that counts as equal."""

CHUNK_BATCHES = {"prefill": "prefix chunks", "decode": "decodes of those tables"}
EXPERT_FORMATS = {
    "": ("bf16", "fp8"),
    "narrow ": ("fp8_block", "fp4", "w4a8"),
    "4-bit ": ("w4a16", "mxfp4"),
}
"""Formats of experts that are reported together; 4-bit weights are unpacked to 16 bits."""

Turn = tuple[Floats, Floats]
"""Predicted and measured seconds of the rows that one turn leaves out."""


def kernel_rows(part: Rows, predicted_s: Floats, **cells: Any) -> pl.DataFrame:
    """Return a frame of predicted and measured seconds with the labels of the rows."""
    labels = {"gpu": part.gpu, "framework": part.framework, "kernel": part.kernel}
    cells = labels | {"dtype": part.dtype} | cells
    return columns(predicted=predicted_s, measured=part.seconds, **cells)


def priced(part: Rows, answer: Priced, **cells: Any) -> pl.DataFrame:
    """Return a frame of an answer of `price`, with its interval, and measured seconds."""
    return kernel_rows(part, answer.latency_s, lo=answer.lo_s, hi=answer.hi_s, **cells)


def shipped_price(part: Rows) -> Priced:
    """Return the product's answer about the rows, for kernels of their framework."""
    return price(part.operator, load_gpu(part.gpu), framework=part.framework)


def as_shipped(part: Rows, **cells: Any) -> pl.DataFrame:
    """Return a frame of the product's answer and measured seconds."""
    return priced(part, shipped_price(part), **cells)


def entry_for(part: Rows) -> Entry | None:
    """Return the calibration entry that prices the attention or experts of the rows, if any."""
    gpu = load_gpu(part.gpu)
    profile = replace(profile_of(gpu), framework=part.framework)
    return entry_of(gpu, profile, part.kernel, formats_of(part))


def own_entry(part: Rows) -> Entry | None:
    """Return the entry that was fitted to rows of this GPU and framework, if any."""
    entry = entry_for(part)
    is_own = entry is not None and entry.calibrated and entry.framework == part.framework
    return entry if is_own else None


def by_entry(part: Rows, entry: Entry, **cells: Any) -> pl.DataFrame:
    """Return a frame of seconds by a calibration entry, with its interval, and measured seconds."""
    if not len(part):
        return pl.DataFrame(schema=EMPTY)
    predicted_s = fused_fits.predicted_s(part, load_gpu(part.gpu), entry)
    lo_s, hi_s = interval_s(entry.band, predicted_s)
    return kernel_rows(part, predicted_s, lo=lo_s, hi=hi_s, **cells)


def in_turns(
    turns: Sequence[Turn], band: Callable[[Sequence[Turn]], Band], **cells: Any
) -> pl.DataFrame:
    """Return a frame of all turns; the interval of each turn is fitted to the other turns."""
    frames = []
    for number, (predicted_s, measured_s) in enumerate(turns):
        others = [*turns[:number], *turns[number + 1 :]]
        ends = interval_s(band(others), predicted_s) if others else (predicted_s, predicted_s)
        times = {"predicted": predicted_s, "measured": measured_s}
        frames.append(columns(**times, lo=ends[0], hi=ends[1], **cells))
    return together(frames)


def full(reference: Path) -> pl.DataFrame:
    """Return held-out fp32 shapes of GPUs with a calibration."""
    frames = []
    for part in read_rows(reference)[0]:
        gpu = load_gpu(part.gpu)
        if profile_of(gpu).level == "full" and part.held_out.any():
            rows = part.where(part.held_out)
            answer = price_call(rows.operator, gpu, profile_of(gpu))
            frames.append(priced(rows, answer, family=FAMILY_OF[part.kernel]))
    return together(frames)


def data_sheet(reference: Path) -> pl.DataFrame:
    """Return fp32 shapes of every GPU as if only its data sheet were known; baseline: roofline."""
    frames = []
    for part in read_rows(reference)[0]:
        gpu, rows = load_gpu(part.gpu), part.layers
        answer = price_call(rows.operator, gpu, zero_shot_profile(identity_of(gpu)))
        roof_s = roofline_s(rows.operator, gpu)
        frames.append(priced(rows, answer, family=FAMILY_OF[part.kernel], baseline=roof_s))
    return together(frames)


def few_rows(reference: Path) -> pl.DataFrame:
    """Return the other fp32 shapes of every GPU, given ten rows of each operator, by draw."""
    frames = []
    for part in read_rows(reference)[0]:
        if part.kernel == "conv":
            continue
        rows, gpu = part.layers, load_gpu(part.gpu)
        blank = zero_shot_profile(identity_of(gpu))
        others = [one.name for one in measured_gpus() if one.name != gpu.name]
        for draw in range(SEEDS):
            one = few_shot_exercise(rows, gpu, blank, FEW_ROWS, draw)
            lo_s, hi_s = interval_s(band_by_rows(rows.kernel, one.missed, others), one.predicted_s)
            cells = {"gpu": rows.gpu, "family": FAMILY_OF[rows.kernel], "draw": draw}
            times = {"predicted": one.predicted_s, "measured": one.measured_s}
            frames.append(columns(**times, lo=lo_s, hi=hi_s, **cells))
    return together(frames)


def transfer_pairs(reference: Path) -> pl.DataFrame:
    """Return the mean error in percent of each ordered pair of GPUs, by class and rows known.

    Times of one GPU are transferred to the other with its most informative rows, which leave the
    test. The baseline scales times by the ratio of bandwidths or of FLOP/s, whichever is better.
    """
    measured, _ = read_rows(reference)
    records = []
    for kernel, count in itertools.product(("linear", "bmm"), TRANSFER_ROWS):
        gpus = {part.gpu: part.layers for part in measured if part.kernel == kernel}
        for source, target in itertools.permutations(gpus, 2):
            first, second = transfer.common_shapes(gpus[source].sizes, gpus[target].sizes)
            one, other = gpus[source].where(first), gpus[target].where(second)
            if len(other) < MIN_SHAPES:
                continue
            some = evenly(len(one), MAX_SHAPES)
            one, other = one.where(some), other.where(some)
            start, end = load_gpu(source), load_gpu(target)
            known = transfer.most_informative(one, count)
            seconds = transfer.transferred_s(one, start, end, other.where(known))[~known]
            scaled = [
                mape(one.seconds[~known] * ratio, other.seconds[~known])
                for ratio in transfer.peak_ratios(start, end).values()
            ]
            ours, naive = 100.0 * mape(seconds, other.seconds[~known]), 100.0 * min(scaled)
            cells = {"kernel": kernel, "count": count, "label": f"{source} to {target}"}
            records.append(
                {**cells, "predicted": ours, "baseline": naive, "is_worse": ours >= naive}
            )
    return pl.DataFrame(records)


def tile_pairs(reference: Path) -> pl.DataFrame:
    """Return predicted and measured ratios of times of two products of equal work, by GPU.

    Profiles name the tile of the kernel that ran and the number of parts it split `k` into. No fit
    has read those names, and the GPU's own rows are left out.
    """
    table = read_table(reference / TILED, TILE_COLUMNS, op="linear")
    frames = []
    for (written,), rows in by_labels(table, "gpu"):
        name = catalog_name(written)
        if load_gpu(name).vendor != "nvidia":
            continue  # kernel names of other libraries follow other rules
        column = {key: rows[key].to_numpy() for key in TILE_COLUMNS[1:]}
        faulty = [split for gpu, op, split in FAULTY if (gpu, op) == (name, "linear")]
        kept = np.flatnonzero((column["tile_a"] > 0) & ~np.isin(column["split"], faulty))
        some = kept[evenly(kept.size, MAX_PRODUCTS)]
        sizes = np.array([column[key][some] for key in ("m", "n", "k")], np.float64)
        tiles = np.stack([column[key][some] for key in ("tile_b", "tile_a", "grid_z")], axis=1)
        predicted_s = _seconds_of_tiles(name, sizes, tiles.astype(np.int64))
        one, other = np.triu_indices(some.size, 1)
        predicted, measured, work = (
            values[one] / values[other]
            for values in (predicted_s, 1e-6 * column["latency_us"][some], np.prod(sizes, axis=0))
        )
        judged = (np.abs(np.log(work)) < SIMILAR) & (np.abs(np.log(measured)) > SIMILAR)
        frames.append(columns(predicted=predicted[judged], measured=measured[judged], gpu=name))
    return together(frames)


def _seconds_of_tiles(name: str, sizes: Floats, tiles: np.ndarray) -> Floats:
    """Return seconds of products under the given tiles, by a fit to other GPUs."""
    gpu, predicted_s = load_gpu(name), np.zeros(len(tiles))
    for tile in np.unique(tiles, axis=0):
        which = (tiles == tile).all(axis=1)
        profile = with_schedule(profile_of(gpu, "zero_shot"), Schedule(*tile.tolist()))
        m, n, k = sizes[:, which]
        product = Gemm(name="product", m=m, n=n, k=k, dtype="fp32")
        predicted_s[which] = price_call(product, gpu, profile).latency_s
    return predicted_s


def products(reference: Path) -> pl.DataFrame:
    """Return tensor-core products with held-out matrices, on GPUs with a calibration."""
    known = {gpu: measured_rates(gpu) for gpu in calibrations("tensor")}
    return together(
        as_shipped(part.where(part.held_out))
        for part in tensor.read_tensor_rows(reference, tensor.PRODUCERS)
        if part.held_out.any()
        and (part.framework, part.dtype) in known.get(load_gpu(part.gpu).name, {})
    )


def transfers(reference: Path, pairs: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Return held-out products of a GPU known by its data sheet and by one other GPU.

    `pairs`: the GPU whose calibration is used, and the GPU that is predicted.
    """
    frames = []
    parts = tensor.read_tensor_rows(reference, tensor.PRODUCERS)
    for (source, target), part in itertools.product(pairs, parts):
        if part.framework != DEFAULT_FRAMEWORK or part.gpu != target or not part.held_out.any():
            continue
        rates = measured_rates(source).get((part.framework, part.dtype))
        if rates is not None:
            rows, gpu = part.where(part.held_out), load_gpu(target)
            predicted_s = np.maximum(seconds_of(rows, rates, gpu), roofline_s(rows.operator, gpu))
            frames.append(kernel_rows(rows, predicted_s, source=source))
    return together(frames)


def in_layers(reference: Path) -> pl.DataFrame:
    """Return products and pointwise chains that were timed inside an engine's layers.

    Only held-out rows, except products of GPUs whose fit used no such layers.
    """
    frames = []
    for gpu in tensor.LAYER_GPUS:
        for part in tensor.read_layer_products(reference, gpu):
            rows = part.where(part.held_out) if gpu in IN_LAYERS else part
            frames.append(as_shipped(rows, name=f"{part.framework} {part.dtype} product in layers"))
        frames += [
            as_shipped(part.where(part.held_out), name=part.name)
            for part in tensor.read_chain_rows(reference, gpu)
        ]
    return together(frames)


def auxiliary(reference: Path) -> pl.DataFrame:
    """Return held-out shapes of auxiliary kernels that were calibrated on their own GPU."""
    frames = []
    for gpu in tensor.AUXILIARY_GPUS:
        by_kernel: dict[tuple[str, str], list[Rows]] = {}
        for part in tensor.read_auxiliary_rows(reference, gpu):
            if part.held_out.any():
                rows = part.where(part.held_out)
                by_kernel.setdefault((part.framework, part.kernel), []).append(rows)
        for parts in by_kernel.values():
            answers = [shipped_price(part) for part in parts]
            if all(answer.calibrated for answer in answers):
                for part, answer in zip(parts, answers, strict=True):
                    frames.append(priced(part, answer, is_unseen=part.bucket >= BANDED))
    return together(frames)


def prompts(reference: Path) -> pl.DataFrame:
    """Return held-out prefills, chunks and mixed batches of GPUs and engines with a calibration.

    `is_unseen`: neither the fit nor its interval has seen the row; `is_chunk`: the row is of the
    tables of chunks and mixed batches.
    """
    return together(
        by_entry(rows, entry, is_unseen=rows.bucket >= BANDED, is_chunk=is_chunk)
        for kernel in ("prefill", "mla_prefill", "mixed")
        for gpu in fused.GPUS
        for is_chunk, read in ((False, fused.read_measured), (True, fused.read_chunks))
        for part in read(reference, gpu, kernel)
        if (entry := own_entry(part)) is not None and part.held_out.any()
        for rows in [part.where(part.held_out)]
    )


def batches(reference: Path) -> pl.DataFrame:
    """Return held-out chunks on a prefix, decodes and mixed batches, by any applicable entry."""
    frames = []
    gpus = dict.fromkeys((*fused.CHUNK_GPUS, *fused.MIXED_GPUS))
    for gpu, kernel in itertools.product(gpus, ("prefill", "decode", "mixed")):
        for part in fused.read_chunks(reference, gpu, kernel):
            rows = part.where(part.held_out)
            if kernel != "mixed":
                frames.append(_by_any(rows, CHUNK_BATCHES[kernel]))
                continue
            is_mixed = rows.sizes["decodes"] > 0
            frames.append(_by_any(rows.where(is_mixed), "mixed batches"))
            frames.append(_by_any(rows.where(~is_mixed), "prefix chunks as mixed batches"))
    return together(frames)


def expert_layers(reference: Path) -> pl.DataFrame:
    """Return layers of experts of other tables: held-out rows where a fit used the table."""
    frames = []
    for gpu in dict.fromkeys((*fused.FRONTIER_GPUS, *fused.SERVING_GPUS)):
        for part in fused.read_layers(reference, gpu):
            rows = part.where(part.held_out) if gpu in fused.FRONTIER_GPUS else part
            frames.append(_by_any(rows, "layers of experts"))
    return together(frames)


def _by_any(rows: Rows, batch: str) -> pl.DataFrame:
    entry = entry_for(rows)
    assert entry is not None, f"no calibration applies to {rows.name}"
    return by_entry(rows, entry, batch=batch)


def octaves(reference: Path) -> pl.DataFrame:
    """Return decode attention, every third octave of pairs and of tokens left out in turn."""

    def band(turns: Sequence[Turn]) -> Band:
        return band_of(*(np.concatenate(column) for column in zip(*turns, strict=True)))

    return together(
        in_turns(octaves_left_out(part), band, gpu=gpu, framework=part.framework, kernel=kernel)
        for kernel in ("decode", "mla_decode")
        for gpu in fused.GPUS
        for part in fused.read_measured(reference, gpu, kernel)
        if own_entry(part) is not None
    )


def experts(reference: Path) -> pl.DataFrame:
    """Return layers of experts by split: models left out, also skewed, or octaves of tokens."""
    frames = []
    for gpu in fused.GPUS:
        parts = fused.read_measured(reference, gpu, "experts")
        for framework in dict.fromkeys(part.framework for part in parts):
            mine = [part for part in parts if part.framework == framework]
            for kind, formats in EXPERT_FORMATS.items():
                labels = {"gpu": gpu, "framework": framework, "kind": kind}
                frames += [
                    frame.with_columns(
                        split=pl.lit(split), **{n: pl.lit(v) for n, v in labels.items()}
                    )
                    for dtype in formats
                    for split, frame in _experts_left_out(mine, dtype)
                ]
    return together(frames)


def _experts_left_out(parts: Sequence[Rows], dtype: str) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the rows of a format that a fit has not seen, by the split."""
    balanced = [part for part in parts if part.dtype == dtype and not part.variant]
    few = fused_fits.FEWEST_MODELS
    if not balanced or np.unique(fused.models_of(balanced[0])).size < few:
        return
    drawn = balanced[0].drawn(fused_fits.LEFT_OUT_ROWS)
    skewed = [p.drawn(fused_fits.LEFT_OUT_ROWS) for p in parts if p.dtype == dtype and p.variant]
    turns = []
    for aside, entry in fused_fits.left_out(drawn, fused.models_of):
        predicted_s = fused_fits.predicted_s(aside, load_gpu(aside.gpu), entry)
        turns.append((predicted_s, aside.seconds))
        for part in skewed:
            same = part.where(fused.models_of(part) == fused.models_of(aside)[0])
            yield "model left out, skewed", by_entry(same, entry)
    yield "model left out", in_turns(turns, fused_fits.band_of_groups)
    for aside, entry in fused_fits.left_out(drawn, fused.octaves_of):
        yield "octave left out", by_entry(aside, entry)


def _source_architecture(trial: Trial) -> str:
    return SHEET if trial.source == SHEET else load_gpu(trial.source).architecture


LEFT_OUT: Mapping[str, tuple[Callable[[Trial], Hashable], Callable[[Trial], Hashable]]] = {
    "GPU": (lambda trial: trial.rows.gpu, lambda trial: trial.source),
    "architecture": (lambda trial: load_gpu(trial.rows.gpu).architecture, _source_architecture),
    "framework on a GPU": (
        lambda trial: (trial.rows.gpu, trial.rows.framework),
        lambda trial: (trial.source, trial.source_framework),
    ),
}
"""What is left out together: the group of a priced kernel, and the group of a source."""


def transferred(reference: Path) -> pl.DataFrame:
    """Return kernels priced from other GPUs, by what is left out.

    The left-out group is hidden from the errors of transfers and from their sources; then the
    lookup chooses a source as it does in use.
    """
    found = trials(reference)
    cases: dict[Hashable, list[Trial]] = {}
    for trial in found:
        cases.setdefault(trial.case, []).append(trial)
    frames = []
    for name, (group_of, source_group_of) in LEFT_OUT.items():
        known: dict[Hashable, Errors] = {}
        for some in cases.values():
            group = group_of(some[0])
            if group not in known:
                known[group] = costs_of(
                    [t for t in found if group not in (group_of(t), source_group_of(t))]
                )
            left = [trial for trial in some if source_group_of(trial) != group]
            if left:
                trial, (lo_s, hi_s) = _chosen(left, known[group])
                kernel = trial.family if trial.rows.kernel == "gemm" else trial.rows.kernel
                labels = {"case": " ".join(trial.case), "kernel": kernel, "left_out": name}
                times = {"predicted": trial.predicted_s, "measured": trial.rows.seconds}
                frames.append(columns(**times, lo=lo_s, hi=hi_s, **labels))
    return together(frames)


def _chosen(some: Sequence[Trial], costs: Errors) -> tuple[Trial, tuple[Floats, Floats]]:
    """Return the first trial of the transfer kind with the least error, and its interval."""

    def cost(trial: Trial) -> TransferError:
        return error_of(trial.family, trial.transfer.name, costs)

    def place(trial: Trial) -> Hashable:
        return trial.source, trial.source_framework, trial.transfer.same_precision

    def source(trial: Trial) -> Hashable:
        return trial.source, trial.source_framework, trial.transfer

    nearer = {place(t) for t in some if t.transfer.relation != VENDOR and cost(t).error < math.inf}
    some = [t for t in some if t.transfer.relation != VENDOR or place(t) not in nearer]
    least = min(some, key=lambda trial: rank(cost(trial), trial.transfer))
    alike = (t for t in some if source(t) == source(least) and t.whole == cost(t).whole)
    best = next(alike, least)
    return best, interval_s(cost(best).widened(best.band), best.predicted_s)


def readings(reference: Path) -> pl.DataFrame:
    """Return predicted and metered watts or joules of held-out shapes, by figure, GPU and table.

    Figures. "watts": the meter's reading of a loop of kernels. "settled draw": kernels long enough
    for the meter, by the GPU's own numbers or ("GPU left out") those of the other metered GPU.
    "joules from the shape alone": time and watts of products are both predicted.
    """
    frames = []
    for part in tensor.read_power_rows(reference):
        rows = part.where(part.held_out)
        if is_host_timed(rows) or not len(rows):
            continue
        gpu, labels = (
            load_gpu(part.gpu),
            {"gpu": part.gpu, "table": tensor.POWER_TABLES[part.kernel]},
        )
        shown_w = energy.power_w(rows.operator, gpu, rows.seconds)
        meter = meter_of(gpu, tensor.meter_name(part))
        if meter is not None:
            shown_w = reading_w(meter, rows.operator, rows.seconds, shown_w)
        figures = {"watts": (shown_w, rows.watts)}
        long = rows.where(rows.seconds >= SETTLED_S)
        if len(long):
            draw_w = energy.power_w(long.operator, gpu, long.seconds)
            [other] = [metered for metered in calibrations("power") if metered != part.gpu]
            model = energy.power_model_from(energy.measured_power(other) or {}, whole=False)
            other_w = energy.modelled_w(model, long.operator, gpu, long.seconds)
            figures["settled draw"] = (draw_w, long.watts)
            figures["settled draw, GPU left out"] = (other_w, long.watts)
            if part.kernel == "gemm":
                ours_j = energy.energy_j(long.operator, gpu, shipped_price(long).latency_s)
                figures["joules from the shape alone"] = (ours_j, long.watts * long.seconds)
        frames += [
            columns(predicted=ours, measured=theirs, figure=figure, **labels)
            for figure, (ours, theirs) in figures.items()
        ]
    return together(frames)
