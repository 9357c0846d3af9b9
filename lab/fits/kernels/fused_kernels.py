"""Fit attention, mixture-of-experts and auxiliary kernels to times measured on the GPU.

The numbers of a form are fitted to half of all shapes, and monotone trees to its residuals. One
half of the other shapes gives the 90 % interval, the rest is the test set; errors are of both.
Decode has grids in place of trees; octaves left out in turn give error and interval.
`fused_kernels.toml` says which kernels are fitted, docs/explanation/kernels.md describes the fits.

Auxiliary kernels are state updates, convolutions, quantisation and embeddings. GPUs whose kernels
were timed only inside an engine have pointwise chains of layers, without trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from lab.fits.driver import Calibration, chosen, declared, settings
from lab.fits.kernels import kernel_calibration as calibration
from lab.fits.kernels.kernel_calibration import FittedEntry, Numbers, form, plain_entry
from lab.fits.methods import band_of, grouped, leave_one_out, matern, quantile
from lab.tables import kernels as tables
from lab.tables import rows as measured_rows
from lab.tables.kernels import models_of, products_of
from lab.tables.operators.hyper_connections import read_mixing_rows
from lab.tables.rows import Bools, Floats, Groups, Rows, Sizes, mape, read_table
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.intervals import COVERED, WIDEST, Band
from simulators.evidence.transfer import LIBRARY_ALONE, instructions, library_of
from simulators.kernels import corrections
from simulators.kernels.families import attention, auxiliary_kernels, experts
from simulators.kernels.families.family import Entry
from simulators.kernels.families.latent_attention import SPLITS
from simulators.kernels.families.streaming import chain_seconds
from simulators.workload.operators import Attention

CONFIG = settings(__file__)
KERNELS = (*tables.TABLES, "mixed")


def fit_fused_kernels(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for gpu in chosen(only, tables.GPUS):
        kernels = CONFIG.only.get(gpu, KERNELS)
        found = [rows for kernel in kernels for rows in _kept(reference, gpu, kernel)]
        if done := [*map(fit_kernel, found), *fit_triton(reference, gpu)]:
            files = _tables(gpu, {rows.kernel for rows in found})
            yield calibration.entries(
                "fused_kernels", gpu, done, leaf_step=1e-3, digits=3, tables=files
            )


def _kept(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the fitted rows of a kernel, joined by calibration name."""
    measured = tables.read_measured(reference, gpu, kernel)
    found = [by_library(rows) for rows in measured if not rows.variant]
    kept = [r for r in found if r.framework in CONFIG.shipped or kernel != "prefill"] or found
    narrow = CONFIG.narrow.get(gpu, ())
    kept = [r for r in kept if r.dtype not in tables.NARROW or f"{r.framework}.{r.dtype}" in narrow]
    kept += tables.read_chunks(reference, gpu, kernel)
    if kernel == "experts":
        kept += tables.read_layers(reference, gpu)
    together = measured_rows.joined(kept, lambda rows: rows.name)
    return [rows for rows in together if len(rows) >= CONFIG.fewest_rows]


def by_library(rows: Rows) -> Rows:
    """Return rows under the name of the library whose kernel was timed."""
    library = CONFIG.library.get(rows.gpu, {}).get(rows.name, rows.framework)
    return replace(rows, framework=library)


def _tables(gpu: str, kernels: set[str]) -> list[str]:
    frontier = tables.LAYERS["frontier"]
    others = (
        (tables.SERIES.mixed, tables.SERIES.mixed_gpus),
        (tables.SERIES.chunks, tables.SERIES.chunk_gpus),
        (tables.SERIES.points, tables.SERIES.point_gpus),
        (frontier["file"], frontier["gpus"]),
    )
    found = [table for k in tables.TABLES if k in kernels for table in tables.tables_of(k)]
    return found + [table for table, gpus in others if gpu in gpus]


def fit_kernel(rows: Rows) -> FittedEntry:
    """Return the entry of one kernel; experts have the interval of models left out."""
    if rows.kernel.endswith("decode"):
        return fit_decode(rows)
    seen, gpu = rows.where(~rows.held_out), load_gpu(rows.gpu)
    fitted = calibration.judged(
        _fit(seen, gpu), [rows], len(rows), lambda part, e: predicted_s(part, gpu, e)
    )
    if rows.kernel != "experts" or np.unique(models_of(seen)).size < CONFIG.fewest_models:
        return fitted
    parts = left_out(seen.drawn(CONFIG.left_out_rows), models_of)
    band = band_of_groups([(predicted_s(aside, gpu, e), aside.seconds) for aside, e in parts])
    return replace(fitted, entry=replace(fitted.entry, band=band))


def band_of_groups(groups: Sequence[tuple[Floats, Floats]]) -> Band:
    """Return the interval of a new group, from predicted and measured seconds of others."""
    predicted, measured_s = map(np.concatenate, zip(*groups, strict=True))
    return band_of(predicted, measured_s, widen=1.0 + 1.0 / len(groups))


def left_out(rows: Rows, group: Callable[[Rows], Groups]) -> Iterator[tuple[Rows, Entry]]:
    """Yield the rows of each group, and the entry fitted to all others."""
    groups, gpu = group(rows), load_gpu(rows.gpu)
    for one in np.unique(groups):
        aside = groups == one
        yield rows.where(aside), _fit(rows.where(~aside), gpu)


def _fit(seen: Rows, gpu: Gpu) -> Entry:
    plain = plain_entry(seen, _fit_form(seen, gpu))
    if len(seen) < CONFIG.fewest_tree_rows:
        return plain
    family = "experts" if seen.kernel == "experts" else "attention"
    settings = CONFIG.boosting[family] | CONFIG.trees.get(seen.name, {})
    rows = _tree_rows(seen.thinned(CONFIG.tree_rows), gpu, plain)
    correction = calibration.fit_correction(*rows, **settings)
    return replace(plain, correction=correction)


def predicted_s(rows: Rows, gpu: Gpu, entry: Entry) -> Floats:
    """Return predicted seconds of measured rows; experts are the sum of both products."""
    if rows.kernel != "experts":
        return attention.fitted_seconds(rows.operator, gpu, entry)
    up, down = _products_s(rows, gpu, entry)
    return np.asarray(up + down, np.float64)


def _products_s(rows: Rows, gpu: Gpu, entry: Entry) -> list[Floats]:
    products = products_of(rows)
    return [experts.fitted_expert_seconds(one, rows.dtype, gpu, entry) for one in products]


def _fit_form(rows: Rows, gpu: Gpu) -> dict[str, float]:
    some = rows.thinned(CONFIG.form_rows)
    seconds = _form_of(some, gpu)
    name, fitted = calibration.best_form(_forms(rows, gpu), some, seconds)
    if rows.name != CONFIG.tuned_name:
        return fitted
    many = (rows.sizes["moe_ep_size"] == 1) & (rows.sizes["num_tokens"] >= CONFIG.tuned_tokens)
    tuned = _tuned(rows.where(many), gpu, fitted)
    return tuned | form(name).fit(lambda numbers: seconds({**numbers, **tuned}), some.seconds)


def _forms(rows: Rows, gpu: Gpu) -> Sequence[str]:
    first, *others = CONFIG.forms[rows.kernel]
    if rows.kernel == "mla_prefill" and multiplies_by_warps(gpu):
        library = library_of(rows.framework, rows.kernel, gpu.architecture)
        first = "triton_prompt" if library == LIBRARY_ALONE else "warp_prompt"
    return first, *others


def _tuned(rows: Rows, gpu: Gpu, numbers: Numbers) -> dict[str, float]:
    """Return the speedup of layers with tuned tiles against the form."""
    up, _ = products_of(rows)
    faster, found = _form_of(rows, gpu)(dict(numbers)) / rows.seconds, {}
    for count, width in sorted(set(zip(up.experts.tolist(), up.width.tolist(), strict=True))):
        speedup = float(np.median(faster[(up.experts == count) & (up.width == width)]))
        if speedup > CONFIG.tuned_least:
            found[f"{experts.TUNED}{count:.0f}_{width:.0f}"] = speedup
    shipped = CONFIG.tuned.get(rows.gpu, ()) if found else ()
    typical = float(np.median(list(found.values()))) if found else 1.0
    return {f"{experts.TUNED}{count}_{width}": typical for count, width in shipped} | found


def _form_of(rows: Rows, gpu: Gpu) -> Callable[[dict[str, float]], Floats]:
    if rows.kernel == "experts":
        products = products_of(rows)
        return lambda numbers: np.asarray(
            sum(experts.expert_seconds(sizes, rows.dtype, gpu, numbers) for sizes in products)
        )
    return partial(attention.form_seconds, rows.operator, gpu)


def _tree_rows(rows: Rows, gpu: Gpu, plain: Entry) -> tuple[Floats, Floats, Floats]:
    """Return features, the form's seconds and targets; products share a layer's measured time."""
    if rows.kernel != "experts":
        seconds = predicted_s(rows, gpu, plain)
        is_mixed = rows.kernel == "mixed"
        features_of = attention.mixed_features if is_mixed else attention.attention_features
        return features_of(rows.operator, seconds.shape), seconds, rows.seconds
    each = _products_s(rows, gpu, plain)
    miss = rows.seconds / (each[0] + each[1])
    features = np.concatenate([*map(experts.expert_features, products_of(rows))], axis=1)
    return features, np.concatenate(each), np.concatenate([part * miss for part in each])


def fit_triton(reference: Path, gpu: str) -> Iterator[FittedEntry]:
    """Yield the entries of Triton's latent attention on a GPU, one per library name."""
    if multiplies_by_warps(load_gpu(gpu)):
        file = reference / tables.tables_of("mla_decode")[0]
        table = read_table(file, gpu=tables.NAMED.get(gpu, gpu))
        for part in tables.measured_in(table, gpu, "mla_decode", tables.LEAST_ROWS):
            if part.framework == CONFIG.timed_by and measured_rows.is_host_timed(part):
                fitted = _fit_triton(
                    "triton_latent", _beyond_host(part), {SPLITS: CONFIG.fixed_splits}
                )
                yield fitted
                for library, dealt in CONFIG.dealt.items():
                    entry = replace(fitted.entry, numbers={**fitted.entry.numbers, **dealt})
                    yield replace(
                        fitted, name=fitted.name.replace(CONFIG.timed_by, library), entry=entry
                    )
    file = reference / tables.tables_of("prefill")[0]
    is_alone = library_of("sglang", "mla_prefill", load_gpu(gpu).architecture) == LIBRARY_ALONE
    if file.is_file() and not is_alone:
        wanted = {"gpu": tables.NAMED.get(gpu, gpu), "head_dim": CONFIG.wide_heads}
        table = read_table(file, kernel=LIBRARY_ALONE, **wanted)
        for part in tables.measured_in(table, gpu, "prefill", CONFIG.fewest_wide):
            if part.dtype == CONFIG.prompt_dtype:
                name = f"{LIBRARY_ALONE}.mla_prefill.{part.dtype}"
                yield replace(_fit_triton("triton_prompt", part), name=name)


def _beyond_host(rows: Rows) -> Rows:
    rows = rows.where(rows.seconds > CONFIG.hidden * rows.seconds.min())
    s = rows.sizes
    sides = np.stack([s["batch_size"], s["isl"] + s["step"], s["num_heads"]])
    larger = np.all(sides[:, None, :] >= sides[:, :, None], axis=0)
    is_lone = s["num_heads"] == 1.0  # another kernel
    larger &= is_lone[:, None] == is_lone
    least_s = np.where(larger, rows.seconds, np.inf).min(axis=1)
    return rows.where(least_s > CONFIG.hiccup * rows.seconds)


def _fit_triton(name: str, rows: Rows, fixed: Numbers | None = None) -> FittedEntry:
    fitted = calibration.fit_plain(name, rows, attention.form_seconds, fixed=fixed)
    return replace(fitted, rows=len(rows))


def fit_unified_triton(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the kernel's numbers, which all GPUs share."""
    file = reference / tables.tables_of("prefill")[0]
    gpus = [rows for gpu in CONFIG.unified_gpus for rows in _unified_rows(file, gpu)]
    ratio = np.concatenate(
        [
            rows.seconds / _unified_s(rows, numbers)
            for [rows], numbers in leave_one_out(gpus, lambda rows: rows.gpu, _fit_unified)
        ]
    )
    low, high = quantile(ratio, COVERED)
    yield declared(
        "unified_triton",
        content={"numbers": _fit_unified(gpus), "ends": {"lo": float(low), "hi": float(high)}},
        rows=sum(map(len, gpus)),
        errors=1.0 / ratio - 1.0,
    )


def _unified_rows(file: Path, gpu: str) -> Iterator[Rows]:
    table = read_table(file, gpu=tables.NAMED.get(gpu, gpu), kernel=CONFIG.unified)
    for part in tables.measured_in(table, gpu, "prefill", CONFIG.fewest_unified):
        if part.framework == CONFIG.timed_by:
            yield part.where(
                part.sizes["num_heads"] == CONFIG.unified_group * part.sizes["num_key_value_heads"]
            )


def _fit_unified(gpus: Sequence[Rows]) -> dict[str, float]:
    return form("triton_unified").fit(
        lambda numbers: np.concatenate([_unified_s(rows, numbers) for rows in gpus]),
        np.concatenate([rows.seconds for rows in gpus]),
    )


def _unified_s(rows: Rows, numbers: Numbers) -> Floats:
    return attention.unified_seconds(rows.operator, load_gpu(rows.gpu), numbers)


def fit_auxiliary_kernels(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, [*tables.AUXILIARY.gpus, *tables.ENGINE.gpus]):
        if name not in tables.AUXILIARY.gpus:
            parts = tables.read_chain_rows(reference, name)
            chains = [
                calibration.fit_plain("chain", part, chain_seconds, ridge=CONFIG.chain_ridge)
                for part in parts
            ]
            yield calibration.entries("auxiliary_chains", name, chains)
            continue
        measured = tables.read_auxiliary_rows(reference, name)
        done = [
            fit_auxiliary(parts, load_gpu(name))
            for parts in grouped(measured, lambda part: part.name).values()
            if sum(np.count_nonzero(~part.held_out) for part in parts) >= CONFIG.fewest_form_rows
        ]
        yield calibration.entries("auxiliary_kernels", name, done, leaf_step=1e-3, digits=3)


def fit_state_kernels(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of recurrent states on further GPUs and of further rules."""
    for name in chosen(only, tables.STATES.gpus):
        mixing = read_mixing_rows(reference, name)
        measured = [*tables.read_state_rows(reference, name), *mixing]
        done = [
            fit_auxiliary(parts, load_gpu(name))
            for parts in grouped(measured, lambda part: part.name).values()
        ]
        yield calibration.entries("state_kernels", name, done, leaf_step=1e-3, digits=3)


def fit_auxiliary(parts: Sequence[Rows], gpu: Gpu) -> FittedEntry:
    """Return the entry of one auxiliary kernel: the form, and trees if there are enough rows."""
    seen = [part.where(~part.held_out) for part in parts]
    works = [vars(auxiliary_kernels.work_of(part.operator)) for part in seen]
    work = {
        name: np.concatenate([one[name] for one in works], axis=-1)
        for name, column in works[0].items()
        if np.ndim(column)
    }
    seconds = np.concatenate([part.seconds for part in seen])
    dtype = auxiliary_kernels.dtype_on(seen[0].operator, gpu)

    def form_s(numbers: Numbers, rows: Any = slice(None)) -> Floats:
        some = auxiliary_kernels.KernelWork(**{n: column[..., rows] for n, column in work.items()})
        return auxiliary_kernels.form_seconds(some, dtype, gpu, numbers)

    few = measured_rows.evenly(seconds.size, CONFIG.auxiliary_rows)
    kernel = parts[0].kernel
    first = kernel.partition("_")[0]
    name = "states" if tables.is_state(kernel) else first if first in CONFIG.loops else "auxiliary"
    numbers = form(name).fit(lambda one: form_s(one, few), seconds[few])
    entry = plain_entry(parts[0], numbers)
    if seconds.size >= CONFIG.fewest_auxiliary:
        trees = calibration.fit_correction(
            work["features"],
            form_s(numbers),
            seconds,
            **CONFIG["index" if kernel.startswith("index") else "auxiliary"],
        )
        corrected = replace(entry, correction=trees)
        plain, whole = (_error(one, seen, gpu) for one in (entry, corrected))
        if name == "auxiliary" or whole < CONFIG.tree_gain * plain:
            entry = corrected
    return calibration.judged(
        entry,
        parts,
        seconds.size,
        lambda part, e: auxiliary_kernels.fitted_seconds(part.operator, gpu, e),
    )


def _error(entry: Entry, parts: Sequence[Rows], gpu: Gpu) -> float:
    each = [auxiliary_kernels.fitted_seconds(part.operator, gpu, entry) for part in parts]
    return mape(np.concatenate(each), np.concatenate([part.seconds for part in parts]))


def places(steps: Attention) -> Floats:
    """Return log2 of the pairs and of the tokens of each decode step, a row per step."""
    _, _, pairs, tokens = next(corrections.slices_of(steps))
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
        if np.count_nonzero(mine) >= CONFIG.least_packed or len(packed) == 1:
            blocks = partial(_blocks_of, rows.operator_of, packing)
            some = replace(rows.where(mine), operator_of=blocks)
            by_packing[packing] = refit(some, numbers)
            kinds = [where for where, *_ in slices if where.packing == packing]
            grids |= _grids_of(some, partial(form, numbers=by_packing[packing]), kinds)
    return corrections.GridTable(by_packing, grids)


def _blocks_of(operator_of: Callable[[Sizes], Attention], packing: int, sizes: Sizes) -> Attention:
    """Return decode steps as blocks of one key head each, with the query heads of their packing."""
    steps = operator_of(sizes)
    each = np.maximum(steps.kv_heads, 1.0)
    sums = ("requests", "query_tokens", "pairs", "kv_tokens", "context_tokens")
    more = {name: np.asarray(getattr(steps, name)) * each for name in sums}
    heads = (corrections.LATENT_NOMINAL if steps.latent else corrections.NOMINAL)[packing]
    kv_heads = steps.kv_heads if steps.latent else 1.0
    return replace(steps, heads=heads, kv_heads=kv_heads, **more)


def _grids_of(
    rows: Rows, form: Callable[[Attention], Floats], kinds: list[corrections.Slice]
) -> dict[corrections.Slice, Floats]:
    """Return the grids of a packing and of its slices; all latent widths share one grid."""
    steps = rows.operator
    at, residual = places(steps), np.log(rows.seconds / form(steps))
    shape = tuple(int(np.ceil(side)) + 1 for side in at.max(axis=0))
    nodes = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=2).astype(np.float64)
    flat = nodes.reshape(-1, 2)
    found = smoothed(at, residual, np.concatenate([flat, at]), CONFIG.residuals["shared"])
    shared, left = found[: -len(at)].reshape(shape), residual - found[-len(at) :]
    pairs, tokens = np.exp2(nodes).transpose(2, 0, 1)
    dims, windows = (np.broadcast_to(x, residual.shape) for x in (steps.head_dim, steps.window))
    grids = {kinds[0].shared: shared}
    for where in kinds:
        mine = (dims == where.head_dim) & (windows == where.window)
        if np.count_nonzero(mine) < CONFIG.least_slice:
            continue
        own = smoothed(at[mine], left[mine], flat, CONFIG.residuals["own"]).reshape(shape)
        plain = np.log(form(corrections.decode_steps_at(where, pairs, tokens, steps))) + shared
        count = np.full(shape, CONFIG.guessed)
        np.add.at(count, tuple(np.rint(at[mine]).astype(np.int64).T), 1.0)
        grids[where] = nearest_rising(plain + own, count) - plain
    if steps.latent and kinds[0] in grids:
        return {kinds[0].shared: shared + grids[kinds[0]]}
    return grids


def smoothed(known_at: Floats, values: Floats, wanted: Floats, scales: Numbers) -> Floats:
    """Return the mean of the process at wanted places, given values at known ones."""
    known, which = np.unique(
        np.rint(CONFIG.parts * known_at) / CONFIG.parts, axis=0, return_inverse=True
    )
    which = which.reshape(-1)
    count = np.bincount(which)
    by_place = np.split(values[np.argsort(which, kind="stable")], np.cumsum(count)[:-1])
    middle = np.array([np.median(some) for some in by_place])
    # Rows of one place share part of their noise: more of them say little more.
    noise = scales["noise"] ** 2 * (0.3 + 0.7 / count)
    weights = np.linalg.solve(_covariance(known, known, scales) + np.diag(noise), middle)
    return np.asarray(_covariance(wanted, known, scales) @ weights, np.float64)


def _covariance(one: Floats, other: Floats, scales: Numbers) -> Floats:
    x, y = (one[:, None, side] - other[None, :, side] for side in (0, 1))
    near = matern(x / scales["length"]) * matern(y / scales["length"])
    alike = matern((x + y) / scales["bytes_length"]) * matern(0.5 * (x - y) / scales["along"])
    return scales["size"] ** 2 * near + scales["bytes_size"] ** 2 * alike


def nearest_rising(grid: Floats, weights: Floats) -> Floats:
    """Return the grid with the least weighted squares that is non-decreasing along both axes."""
    fitted, owed = grid.copy(), [np.zeros_like(grid), np.zeros_like(grid)]
    for _ in range(CONFIG.projections):
        before = fitted
        for axis in (0, 1):
            wanted = fitted + owed[axis]
            columns = zip(np.moveaxis(wanted, axis, 1), np.moveaxis(weights, axis, 1), strict=True)
            found = [isotonic_regression(value, weights=weight).x for value, weight in columns]
            fitted = np.moveaxis(np.stack(found), 1, axis)
            owed[axis] = wanted - fitted
        if np.abs(fitted - before).max() < CONFIG.settled:
            break
    return corrections.rising(fitted)


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
    rows, gpu = rows.drawn(CONFIG.judged_rows), load_gpu(rows.gpu)
    found = []
    octaves = np.rint(places(rows.operator)).astype(np.int64) % CONFIG.turns
    for side, turn in product((0, 1), range(CONFIG.turns)):
        out = octaves[:, side] == turn
        if out.any() and not out.all():
            entry, aside = fit_entry(rows.where(~out), gpu), rows.where(out)
            found.append((attention.fitted_seconds(aside.operator, gpu, entry), aside.seconds))
    return found


def fit_entry(rows: Rows, gpu: Gpu) -> Entry:
    """Return the entry fitted to all of these rows."""
    some = rows.thinned(CONFIG.decode_form_rows)
    has_other = some.operator.latent and multiplies_by_warps(gpu)
    forms = ("decode", "warp_latent") if has_other else ("decode",)
    name, numbers = calibration.best_form(
        forms, some, partial(attention.form_seconds, some.operator, gpu)
    )
    entry = plain_entry(rows, numbers)
    if len(rows) < CONFIG.fewest_grid_rows:
        return entry

    def refit(packed: Rows, near: Numbers) -> Numbers:
        some = packed.drawn(CONFIG.packed_rows)
        seconds_of = partial(attention.form_seconds, some.operator, gpu)
        return form(name).fit(seconds_of, some.seconds, ridge=CONFIG.packed_ridge, near=near)

    return replace(
        entry, grid=fit_grids(rows, partial(attention.form_seconds, gpu=gpu), numbers, refit)
    )


def multiplies_by_warps(gpu: Gpu) -> bool:
    """Return whether single warps drive the tensor cores of a GPU, as before Hopper."""
    return gpu.architecture in instructions()["warp"]
