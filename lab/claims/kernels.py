"""Claims about kernels: fp32 calls, tensor-core products, attention, experts, transfer and power.

fp32 calls are judged at three levels of information. Full: GPUs with a calibration, on held-out
shapes. Few rows: GPUs left out of every fit, with ten rows per operator, in four draws. Data sheet:
every GPU as if only its data sheet were known. Errors are those of isolated calls and include the
host's dispatch, as the tables do.

Shapes of one model's layer are near copies of each other. Shapes held out at random would flatter a
fit of decode attention or experts, so whole models and octaves of tokens are left out instead.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.claim import EMPTY, Cells, columns
from lab.fits.kernels import fused_kernels as fused_fits
from lab.fits.kernels import power as meters
from lab.fits.kernels.fp32_kernels import CONFIG as FEW_SHOT
from lab.fits.kernels.fp32_kernels import few_shot_exercise
from lab.fits.kernels.fused_kernels import octaves_left_out
from lab.fits.kernels.tensor_cores import CONFIG as PRODUCTS
from lab.fits.kernels.tensor_cores import seconds_of
from lab.fits.kernels.transferred_kernels import Trial, costs_of, formats_of, trials
from lab.fits.methods import band_of
from lab.tables import kernels as tables
from lab.tables.fp32 import FAULTY, catalog_name, read_rows
from lab.tables.rows import BANDED, Floats, Rows, evenly, is_host_timed, mape, read_frame
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
    **dict.fromkeys(("softmax", "layer_norm"), "softmax + norm"),
    **dict.fromkeys(("binary", "unary", "pow", "powu"), "elementwise"),
}
"""Families in which errors of fp32 operator classes are reported together."""

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

PROMPTS, BATCHES = ("prefill", "mla_prefill"), ("prefill", "decode", "mixed")
"""Kinds of attention in tables of whole prompts, and in tables of chunks and mixed batches."""

Turn = tuple[Floats, Floats]
"""Predicted and measured seconds of the rows that one turn leaves out."""


def held_out(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the held-out rows of each part that has some."""
    return (part.where(part.held_out) for part in parts if part.held_out.any())


def kernel_rows(part: Rows, predicted_s: Floats, **cells: Any) -> pl.DataFrame:
    """Return a frame of predicted and measured seconds with the labels of the rows."""
    labels = {"gpu": part.gpu, "framework": part.framework, "kernel": part.kernel}
    cells = {"family": FAMILY_OF.get(part.kernel, part.kernel), "dtype": part.dtype} | cells
    return columns(predicted=predicted_s, measured=part.seconds, **labels, **cells)


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


def has_own_entry(part: Rows) -> bool:
    """Return whether the entry of the rows was fitted to their own GPU and framework."""
    entry = entry_for(part)
    return entry is not None and entry.calibrated and entry.framework == part.framework


def by_entry(part: Rows, entry: Entry | None, **cells: Any) -> pl.DataFrame:
    """Return a frame of seconds by a calibration entry, with its interval, and measured seconds."""
    if not len(part):
        return pl.DataFrame(schema=EMPTY)
    assert entry is not None, f"no calibration applies to {part.name}"
    predicted_s = fused_fits.predicted_s(part, load_gpu(part.gpu), entry)
    lo_s, hi_s = interval_s(entry.band, predicted_s)
    return kernel_rows(part, predicted_s, lo=lo_s, hi=hi_s, **cells)


def in_turns(
    turns: Sequence[Turn], band: Callable[[Sequence[Turn]], Band], **cells: Any
) -> Iterator[pl.DataFrame]:
    """Yield a frame of all turns; the interval of each turn is fitted to the other turns."""
    for number, (predicted_s, measured_s) in enumerate(turns):
        others = [*turns[:number], *turns[number + 1 :]]
        ends = interval_s(band(others), predicted_s) if others else (predicted_s, predicted_s)
        times = {"predicted": predicted_s, "measured": measured_s}
        yield columns(**times, lo=ends[0], hi=ends[1], **cells)


def full(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out fp32 shapes of GPUs with a calibration."""
    for rows in held_out(read_rows(reference)):
        gpu = load_gpu(rows.gpu)
        if profile_of(gpu).level == "full":
            yield priced(rows, price_call(rows.operator, gpu, profile_of(gpu)))


def data_sheet(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield fp32 shapes of every GPU as if only its data sheet were known; baseline: roofline."""
    for part in read_rows(reference):
        gpu, rows = load_gpu(part.gpu), part.layers
        answer = price_call(rows.operator, gpu, zero_shot_profile(identity_of(gpu)))
        yield priced(rows, answer, baseline=roofline_s(rows.operator, gpu))


def few_rows(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield the other fp32 shapes of every GPU, given ten rows of each operator, by draw."""
    for part in read_rows(reference):
        if part.kernel == "conv":
            continue
        rows, gpu = part.layers, load_gpu(part.gpu)
        blank = zero_shot_profile(identity_of(gpu))
        others = [one.name for one in measured_gpus() if one.name != gpu.name]
        for draw in range(FEW_SHOT.seeds):
            found = few_shot_exercise(rows, gpu, blank, FEW_SHOT.few_rows, draw)
            predicted_s, measured_s, missed = found
            lo_s, hi_s = interval_s(band_by_rows(rows.kernel, missed, others), predicted_s)
            cells = {"gpu": gpu.name, "family": FAMILY_OF.get(rows.kernel, rows.kernel)}
            times = {"predicted": predicted_s, "measured": measured_s, "draw": draw}
            yield columns(**times, lo=lo_s, hi=hi_s, **cells)


def transfer_pairs(reference: Path) -> Iterator[Cells]:
    """Yield the mean error in percent of each ordered pair of GPUs, by class and rows known.

    Times of one GPU are transferred to the other with its most informative rows, which leave the
    test. The baseline scales times by the ratio of bandwidths or of FLOP/s, whichever is better.
    """
    measured = read_rows(reference)
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
            yield {**cells, "predicted": ours, "baseline": naive, "is_worse": ours >= naive}


def tile_pairs(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield predicted and measured ratios of times of two products of equal work, by GPU.

    Profiles name the tile of the kernel that ran and the number of parts it split `k` into. No fit
    has read those names, and the GPU's own rows are left out.
    """
    table = read_frame(reference / TILED, TILE_COLUMNS, op="linear").filter(pl.col("tile_a") > 0)
    for (written,), mine in table.group_by("gpu", maintain_order=True):
        name = catalog_name(str(written))
        if load_gpu(name).vendor != "nvidia":
            continue  # kernel names of other libraries follow other rules
        faulty = [split for gpu, op, split in FAULTY if (gpu, op) == (name, "linear")]
        kept = mine.filter(~pl.col("split").is_in(faulty))
        rows = kept[evenly(kept.height, MAX_PRODUCTS)]
        sizes = rows["m", "n", "k"].to_numpy().T.astype(np.float64)
        tiles = rows["tile_b", "tile_a", "grid_z"].to_numpy()
        predicted_s = _seconds_of_tiles(name, sizes, tiles.astype(np.int64))
        one, other = np.triu_indices(rows.height, 1)
        predicted, measured, work = (
            values[one] / values[other]
            for values in (predicted_s, rows["latency_us"].to_numpy(), np.prod(sizes, axis=0))
        )
        judged = (np.abs(np.log(work)) < SIMILAR) & (np.abs(np.log(measured)) > SIMILAR)
        yield columns(predicted=predicted[judged], measured=measured[judged], gpu=name)


def _seconds_of_tiles(name: str, sizes: Floats, tiles: np.ndarray) -> Floats:
    gpu, predicted_s = load_gpu(name), np.zeros(len(tiles))
    for tile in np.unique(tiles, axis=0):
        which = (tiles == tile).all(axis=1)
        profile = with_schedule(profile_of(gpu, "zero_shot"), Schedule(*tile.tolist()))
        m, n, k = sizes[:, which]
        product = Gemm(name="product", m=m, n=n, k=k, dtype="fp32")
        predicted_s[which] = price_call(product, gpu, profile).latency_s
    return predicted_s


def products(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield tensor-core products with held-out matrices, on GPUs with a calibration."""
    known = {gpu: measured_rates(gpu) for gpu in calibrations("tensor")}
    for rows in held_out(tables.read_tensor_rows(reference, tables.PRODUCERS)):
        if (rows.framework, rows.dtype) in known.get(load_gpu(rows.gpu).name, {}):
            yield as_shipped(rows)


def transfers(reference: Path, pairs: Sequence[tuple[str, str]]) -> Iterator[pl.DataFrame]:
    """Yield held-out products of a GPU known by its data sheet and by one other GPU.

    `pairs`: the GPU whose calibration is used, and the GPU that is predicted.
    """
    parts = list(held_out(tables.read_tensor_rows(reference, tables.PRODUCERS)))
    for (source, target), rows in itertools.product(pairs, parts):
        rates = measured_rates(source).get((rows.framework, rows.dtype))
        if rates is not None and (rows.framework, rows.gpu) == (DEFAULT_FRAMEWORK, target):
            gpu = load_gpu(target)
            predicted_s = np.maximum(seconds_of(rows, rates, gpu), roofline_s(rows.operator, gpu))
            yield kernel_rows(rows, predicted_s, source=source)


def in_layers(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield products and pointwise chains that were timed inside an engine's layers.

    Only held-out rows, except products of GPUs whose fit used no such layers.
    """
    for gpu in tables.ENGINE.gpus:
        parts = tables.read_layer_products(reference, gpu)
        for rows in held_out(parts) if gpu in PRODUCTS.in_layers else parts:
            yield as_shipped(rows, name=f"{rows.framework} {rows.dtype} product in layers")
        for rows in held_out(tables.read_chain_rows(reference, gpu)):
            yield as_shipped(rows, name=rows.name)


def auxiliary(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out shapes of auxiliary kernels that were calibrated on their own GPU."""
    for gpu in tables.AUXILIARY.gpus:
        parts = list(held_out(tables.read_auxiliary_rows(reference, gpu)))
        answers = [shipped_price(part) for part in parts]
        answered = list(zip(parts, answers, strict=True))
        unknown = {(p.framework, p.kernel) for p, answer in answered if not answer.calibrated}
        for part, answer in answered:
            if (part.framework, part.kernel) not in unknown:
                yield priced(part, answer, is_unseen=part.bucket >= BANDED)


def attention(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield held-out prefills, chunks on a prefix, decodes of the same tables and mixed batches.

    `is_unseen`: neither the fit nor its interval has seen the row; `is_chunk`: the row is of the
    tables of chunks and mixed batches; `is_own`: the calibration is of its GPU and framework. Whole
    prompts are predicted by their own calibration, chunks by any that applies.
    """
    readers = ((tables.read_measured, PROMPTS, False), (tables.read_chunks, BATCHES, True))
    gpus = dict.fromkeys((*tables.GPUS, *tables.SERIES.chunk_gpus, *tables.SERIES.mixed_gpus))
    for gpu, (read, kernels, is_chunk) in itertools.product(gpus, readers):
        for rows in held_out(part for kernel in kernels for part in read(reference, gpu, kernel)):
            is_own = has_own_entry(rows)
            if is_own or is_chunk:
                labels = {"is_own": is_own, "is_chunk": is_chunk, "batch": _batches(rows)}
                yield by_entry(rows, entry_for(rows), is_unseen=rows.bucket >= BANDED, **labels)


def _batches(rows: Rows) -> str | np.ndarray:
    if rows.kernel == "mixed":
        is_mixed = rows.sizes["decodes"] > 0
        return np.where(is_mixed, "mixed batches", "prefix chunks as mixed batches")
    return "decodes of those tables" if rows.kernel == "decode" else "prefix chunks"


def expert_layers(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield layers of experts of other tables: held-out rows where a fit used the table."""
    for gpu in dict.fromkeys(gpu for source in tables.LAYERS.values() for gpu in source["gpus"]):
        parts = tables.read_layers(reference, gpu)
        for rows in held_out(parts) if gpu in tables.LAYERS["frontier"]["gpus"] else parts:
            yield by_entry(rows, entry_for(rows), batch="layers of experts")


def octaves(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield decode attention, every third octave of pairs and of tokens left out in turn."""

    def band(turns: Sequence[Turn]) -> Band:
        return band_of(*map(np.concatenate, zip(*turns, strict=True)))

    for kernel, gpu in itertools.product(("decode", "mla_decode"), tables.GPUS):
        for part in tables.read_measured(reference, gpu, kernel):
            if has_own_entry(part):
                cells = {"gpu": gpu, "framework": part.framework, "kernel": kernel}
                yield from in_turns(octaves_left_out(part), band, **cells)


def experts(reference: Path, kinds: Mapping[str, str]) -> Iterator[pl.DataFrame]:
    """Yield layers of experts by split: models left out, also skewed, or octaves of tokens.

    `kinds`: by format of the experts, the name under which formats are reported together.
    """
    few = fused_fits.CONFIG.fewest_models
    for gpu in tables.GPUS:
        parts = [p for p in tables.read_measured(reference, gpu, "experts") if p.dtype in kinds]
        for balanced in parts:
            if not balanced.variant and np.unique(tables.models_of(balanced)).size >= few:
                skewed = [p for p in parts if p.variant and p.name == balanced.name]
                yield from _experts_left_out(balanced, skewed, kind=kinds[balanced.dtype])


def _experts_left_out(
    balanced: Rows, skewed: Sequence[Rows], **cells: Any
) -> Iterator[pl.DataFrame]:
    drawn, *others = (part.drawn(fused_fits.CONFIG.left_out_rows) for part in (balanced, *skewed))
    turns = []
    for aside, entry in fused_fits.left_out(drawn, tables.models_of):
        predicted_s = fused_fits.predicted_s(aside, load_gpu(aside.gpu), entry)
        turns.append((predicted_s, aside.seconds))
        for part in others:
            same = part.where(tables.models_of(part) == tables.models_of(aside)[0])
            yield by_entry(same, entry, split="model left out, skewed", **cells)
    labels = {"gpu": balanced.gpu, "framework": balanced.framework, "split": "model left out"}
    yield from in_turns(turns, fused_fits.band_of_groups, **labels, **cells)
    for aside, entry in fused_fits.left_out(drawn, tables.octaves_of):
        yield by_entry(aside, entry, split="octave left out", **cells)


LEFT_OUT: Mapping[str, Callable[[str, str], Hashable]] = {
    "GPU": lambda gpu, _: gpu,
    "architecture": lambda gpu, _: gpu if gpu == SHEET else load_gpu(gpu).architecture,
    "framework on a GPU": lambda gpu, framework: (gpu, framework),
}
"""What is left out together: functions from GPU and framework to a group."""


def transferred(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield kernels priced from other GPUs, by what is left out.

    The left-out group is hidden from the errors of transfers and from their sources; then the
    lookup chooses a source as it does in use.
    """
    found = trials(reference)
    cases: dict[Hashable, list[Trial]] = {}
    for trial in found:
        cases.setdefault(trial.case, []).append(trial)

    @functools.cache
    def costs_without(name: str, out: Hashable) -> Errors:
        of = LEFT_OUT[name]
        groups = [(of(*t.case[:2]), of(t.source, t.source_framework)) for t in found]
        return costs_of([t for t, some in zip(found, groups, strict=True) if out not in some])

    for (name, group_of), some in itertools.product(LEFT_OUT.items(), cases.values()):
        out = group_of(*some[0].case[:2])
        left = [trial for trial in some if group_of(trial.source, trial.source_framework) != out]
        if left:
            trial, (lo_s, hi_s) = _chosen(left, costs_without(name, out))
            kernel = trial.family if trial.rows.kernel == "gemm" else trial.rows.kernel
            labels = {"case": " ".join(trial.case), "kernel": kernel, "left_out": name}
            times = {"predicted": trial.predicted_s, "measured": trial.rows.seconds}
            yield columns(**times, lo=lo_s, hi=hi_s, **labels)


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


def readings(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield predicted and metered watts or joules of held-out shapes, by figure, GPU and table.

    Figures. "watts": the meter's reading of a loop of kernels. "settled draw": kernels long enough
    for the meter, by the GPU's own numbers or ("GPU left out") those of the other metered GPU.
    "joules from the shape alone": time and watts of products are both predicted.
    """
    for part in held_out(meters.read_power_rows(reference)):
        if is_host_timed(part):
            continue
        gpu = load_gpu(part.gpu)
        draw = energy.power_model_of(gpu)
        shown_w = energy.modelled_w(draw, part.operator, gpu, part.seconds)
        meter = meters.meter_of(gpu, meters.meter_name(part))
        if meter is not None:
            shown_w = meters.reading_w(meter, part.operator, part.seconds, shown_w)
        figures = {"watts": (shown_w, part.watts)}
        long = part.where(part.seconds >= meters.CONFIG.settled_s)
        if len(long):
            draw_w = energy.modelled_w(draw, long.operator, gpu, long.seconds)
            [other] = [metered for metered in calibrations("power") if metered != part.gpu]
            model = energy.power_model_from(energy.measured_power(other) or {}, whole=False)
            other_w = energy.modelled_w(model, long.operator, gpu, long.seconds)
            figures["settled draw"] = (draw_w, long.watts)
            figures["settled draw, GPU left out"] = (other_w, long.watts)
            if part.kernel == "gemm":
                ours_j = energy.energy_j(long.operator, gpu, shipped_price(long).latency_s)
                figures["joules from the shape alone"] = (ours_j, long.watts * long.seconds)
        labels = {"gpu": part.gpu, "table": meters.POWER.tables[part.kernel]}
        for figure, (ours, theirs) in figures.items():
            yield columns(predicted=ours, measured=theirs, figure=figure, **labels)
