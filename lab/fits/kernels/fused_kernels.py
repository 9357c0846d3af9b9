"""Fit attention, mixture-of-experts and auxiliary kernels to times measured on the GPU.

The numbers of a form are fitted to half of all shapes, and monotone trees to its residuals. One
half of the other shapes gives the 90 % interval, the rest is the test set; errors are of both.
Decode has grids in place of trees (`decode_attention.py`). `fused_kernels.toml` says which kernels
are fitted, docs/explanation/kernels.md how Triton's latent and unified attention are.

Auxiliary kernels are state updates, convolutions, quantisation and embeddings. GPUs whose kernels
were timed only inside an engine have pointwise chains of layers, without trees.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, declared
from lab.fits.kernels.decode_attention import fit_decode, multiplies_by_warps
from lab.fits.kernels.kernel_calibration import (
    FittedEntry,
    Numbers,
    entries,
    fit_correction,
    form,
    judged,
    plain_entry,
)
from lab.fits.methods import band_of, grouped, leave_one_out, quantile
from lab.tables import fused_kernels
from lab.tables.fused_kernels import (
    FRONTIER,
    FRONTIER_GPUS,
    GPUS,
    LEAST_ROWS,
    NAMED,
    NARROW,
    TABLES,
    measured_in,
    models_of,
    products_of,
    read_layers,
    read_measured,
    tables_of,
)
from lab.tables.rows import Floats, Groups, Rows, evenly, is_host_timed, joined, read_table
from lab.tables.tensor_kernels import (
    AUXILIARY_GPUS,
    LAYER_GPUS,
    read_auxiliary_rows,
    read_chain_rows,
)
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.intervals import COVERED, Band
from simulators.evidence.transfer import LIBRARY_ALONE, library_of
from simulators.kernels.families import auxiliary_kernels
from simulators.kernels.families.attention import (
    attention_features,
    fitted_seconds,
    form_seconds,
    mixed_features,
    unified_seconds,
)
from simulators.kernels.families.experts import (
    TUNED,
    expert_features,
    expert_seconds,
    fitted_expert_seconds,
)
from simulators.kernels.families.family import Entry
from simulators.kernels.families.latent_attention import MOST_SPLITS, SPLITS
from simulators.kernels.families.streaming import chain_seconds

CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KERNELS = (*TABLES, "mixed")
FORMS = {
    "prefill": ("prefill", "prefill_together"),
    "mla_prefill": ("mla_prefill", "mla_prefill_together"),
    "mixed": ("prefill",),
    "experts": ("experts", "experts_two_tiles"),
}
MUCH_LESS = 0.9
"""A later form is kept where its error is below this part of the first one's."""

RIDGE = 0.1
FORM_ROWS, TREE_ROWS = 3000, 8000
"""Rows that a fit looks at, evenly spaced; more do not lower errors."""

ALPHA, TREES, DEPTH = 0.5, 64, 4
EXPERT_ALPHA, EXPERT_TREES = 0.9, 32
"""Slope left to the form, and number of trees; more do not predict left-out models better."""

TUNED_NAME, TUNED_TOKENS, TUNED_LEAST = "sglang.experts.bf16", 1024.0, 1.5
"""SGLang ships tuned tiles for some layers: two to three times as fast where tokens are many."""

LEFT_OUT_ROWS, FEWEST_MODELS = 2000, 2
FEWEST_ROWS, FEWEST_TREE_ROWS = 60, 150
"""Least rows of a kernel to be fitted, and least fitted rows for trees."""

SHIPPED = ("vllm", "trtllm", "flashinfer")
"""Prefill of other frameworks is fitted only where these have no table."""


def fit_fused_kernels(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for gpu in chosen(only, GPUS):
        kernels = CONFIG["only"].get(gpu, KERNELS)
        found = [rows for kernel in kernels for rows in _kept(reference, gpu, kernel)]
        if done := [*map(fit_kernel, found), *fit_triton(reference, gpu)]:
            tables = _tables(gpu, {rows.kernel for rows in found})
            yield entries("fused_kernels", gpu, done, leaf_step=1e-3, digits=3, tables=tables)


def _kept(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the fitted rows of a kernel, joined by calibration name."""
    found = [by_library(r) for r in read_measured(reference, gpu, kernel) if not r.variant]
    kept = [r for r in found if r.framework in SHIPPED or kernel != "prefill"] or found
    narrow = CONFIG["narrow"].get(gpu, ())
    kept = [r for r in kept if r.dtype not in NARROW or f"{r.framework}.{r.dtype}" in narrow]
    kept += fused_kernels.read_chunks(reference, gpu, kernel)
    if kernel == "experts":
        kept += read_layers(reference, gpu)
    together = joined(kept, lambda rows: rows.name)
    return [rows for rows in together if len(rows) >= FEWEST_ROWS]


def by_library(rows: Rows) -> Rows:
    """Return rows under the name of the library whose kernel was timed."""
    library = CONFIG["library"].get(rows.gpu, {}).get(rows.name, rows.framework)
    return replace(rows, framework=library)


def _tables(gpu: str, kernels: set[str]) -> list[str]:
    others = (
        (fused_kernels.MIXED, fused_kernels.MIXED_GPUS),
        (fused_kernels.CHUNKS, fused_kernels.CHUNK_GPUS),
        (fused_kernels.POINTS, fused_kernels.POINT_GPUS),
        (FRONTIER, FRONTIER_GPUS),
    )
    return [
        *(table for kernel in TABLES if kernel in kernels for table in tables_of(kernel)),
        *(table for table, gpus in others if gpu in gpus),
    ]


def fit_kernel(rows: Rows) -> FittedEntry:
    """Return the entry of one kernel; experts have the interval of models left out."""
    if rows.kernel.endswith("decode"):
        return fit_decode(rows)
    seen, gpu = rows.where(~rows.held_out), load_gpu(rows.gpu)
    fitted = judged(_fit(seen, gpu), [rows], len(rows), lambda part, e: predicted_s(part, gpu, e))
    if rows.kernel != "experts" or np.unique(models_of(seen)).size < FEWEST_MODELS:
        return fitted
    parts = left_out(seen.drawn(LEFT_OUT_ROWS), models_of)
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
    if len(seen) < FEWEST_TREE_ROWS:
        return plain
    is_experts = seen.kernel == "experts"
    features, seconds, target = _tree_rows(seen.thinned(TREE_ROWS), gpu, plain)
    correction = fit_correction(
        features,
        seconds,
        target,
        alpha=EXPERT_ALPHA if is_experts else ALPHA,
        trees=CONFIG["trees"].get(seen.name, EXPERT_TREES if is_experts else TREES),
        depth=DEPTH,
    )
    return replace(plain, correction=correction)


def predicted_s(rows: Rows, gpu: Gpu, entry: Entry) -> Floats:
    """Return predicted seconds of measured rows; experts are the sum of both products."""
    if rows.kernel != "experts":
        return fitted_seconds(rows.operator, gpu, entry)
    up, down = _products_s(rows, gpu, entry)
    return np.asarray(up + down, np.float64)


def _products_s(rows: Rows, gpu: Gpu, entry: Entry) -> list[Floats]:
    return [fitted_expert_seconds(sizes, rows.dtype, gpu, entry) for sizes in products_of(rows)]


def _fit_form(rows: Rows, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the first form, or of another whose error is much less."""
    some = rows.thinned(FORM_ROWS)
    seconds, names = _form_of(some, gpu), _forms(rows, gpu)
    fitted = [form(name).fit(seconds, some.seconds, ridge=RIDGE) for name in names]
    errors = [float(np.mean(np.abs(np.log(seconds(one) / some.seconds)))) for one in fitted]
    best = int(np.argmin(errors))
    best = best if errors[best] < MUCH_LESS * errors[0] else 0
    if rows.name != TUNED_NAME:
        return fitted[best]
    many = (rows.sizes["moe_ep_size"] == 1) & (rows.sizes["num_tokens"] >= TUNED_TOKENS)
    tuned = _tuned(rows.where(many), gpu, fitted[best])
    return tuned | form(names[best]).fit(
        lambda numbers: seconds({**numbers, **tuned}), some.seconds, ridge=RIDGE
    )


def _forms(rows: Rows, gpu: Gpu) -> Sequence[str]:
    """Return the names of the forms that a kernel may have."""
    if rows.kernel == "mla_prefill" and multiplies_by_warps(gpu):
        library = library_of(rows.framework, rows.kernel, gpu.architecture)
        usual = "triton_prompt" if library == LIBRARY_ALONE else "warp_prompt"
        return (usual, *FORMS[rows.kernel][1:])
    return FORMS[rows.kernel]


def _tuned(rows: Rows, gpu: Gpu, numbers: Numbers) -> dict[str, float]:
    """Return the speedup of layers with tuned tiles against the form."""
    up, _ = products_of(rows)
    faster, found = _form_of(rows, gpu)(dict(numbers)) / rows.seconds, {}
    for experts, width in sorted(set(zip(up.experts.tolist(), up.width.tolist(), strict=True))):
        speedup = float(np.median(faster[(up.experts == experts) & (up.width == width)]))
        if speedup > TUNED_LEAST:
            found[f"{TUNED}{experts:.0f}_{width:.0f}"] = speedup
    shipped = CONFIG["tuned"].get(rows.gpu, ()) if found else ()
    typical = float(np.median(list(found.values()))) if found else 1.0
    return {f"{TUNED}{experts}_{width}": typical for experts, width in shipped} | found


def _form_of(rows: Rows, gpu: Gpu) -> Callable[[dict[str, float]], Floats]:
    """Return the form's seconds as a function of its numbers."""
    if rows.kernel == "experts":
        products = products_of(rows)
        return lambda numbers: np.asarray(
            sum(expert_seconds(sizes, rows.dtype, gpu, numbers) for sizes in products)
        )
    attention = rows.operator
    return lambda numbers: form_seconds(attention, gpu, numbers)


def _tree_rows(rows: Rows, gpu: Gpu, plain: Entry) -> tuple[Floats, Floats, Floats]:
    """Return features, the form's seconds and targets; products share a layer's measured time."""
    if rows.kernel != "experts":
        seconds = predicted_s(rows, gpu, plain)
        features_of = mixed_features if rows.kernel == "mixed" else attention_features
        return features_of(rows.operator, seconds.shape), seconds, rows.seconds
    each = _products_s(rows, gpu, plain)
    miss = rows.seconds / (each[0] + each[1])
    features = np.concatenate([expert_features(sizes) for sizes in products_of(rows)], axis=1)
    return features, np.concatenate(each), np.concatenate([part * miss for part in each])


LATENT_DECODE, TIMED_BY = "mla_decode", "vllm"
FIXED_SPLITS = 4.0
"""vLLM's key splits; SGLang's kernel differs in them alone."""

DEALT: dict[str, dict[str, float]] = {
    "triton": {SPLITS: 0.0},
    "triton_8": {SPLITS: 0.0, MOST_SPLITS: 8.0},
}
"""SGLang's key splits, by the name of a library: current releases, and those of 2025."""

HIDDEN, HICCUP = 2.0, 0.8
"""Multiples of the shortest call's time, and of a larger step's, that bound what is fitted."""

PROMPTS, PROMPT_DTYPE, WIDE_HEADS, FEWEST_WIDE = "mla_prefill", "bf16_bf16", 512, 100


def fit_triton(reference: Path, gpu: str) -> Iterator[FittedEntry]:
    """Yield the entries of Triton's latent attention on a GPU, one per library name."""
    if multiplies_by_warps(load_gpu(gpu)):
        table = read_table(reference / tables_of(LATENT_DECODE)[0], gpu=NAMED.get(gpu, gpu))
        for part in measured_in(table, gpu, LATENT_DECODE, LEAST_ROWS):
            if part.framework == TIMED_BY and is_host_timed(part):
                fitted = _fit_triton_form(
                    "triton_latent", beyond_host(part), {SPLITS: FIXED_SPLITS}
                )
                yield fitted
                for library, dealt in DEALT.items():
                    entry = replace(fitted.entry, numbers={**fitted.entry.numbers, **dealt})
                    yield replace(fitted, name=fitted.name.replace(TIMED_BY, library), entry=entry)
    file = reference / tables_of("prefill")[0]
    is_alone = library_of("sglang", PROMPTS, load_gpu(gpu).architecture) == LIBRARY_ALONE
    if file.is_file() and not is_alone:
        table = read_table(file, gpu=NAMED.get(gpu, gpu), kernel=LIBRARY_ALONE, head_dim=WIDE_HEADS)
        for part in measured_in(table, gpu, "prefill", FEWEST_WIDE):
            if part.dtype == PROMPT_DTYPE:
                name = f"{LIBRARY_ALONE}.{PROMPTS}.{PROMPT_DTYPE}"
                yield replace(_fit_triton_form("triton_prompt", part, {}), name=name)


def beyond_host(rows: Rows) -> Rows:
    """Return the rows whose time is that of the kernel, not of the host."""
    rows = rows.where(rows.seconds > HIDDEN * rows.seconds.min())
    s = rows.sizes
    sides = np.stack([s["batch_size"], s["isl"] + s["step"], s["num_heads"]])
    larger = np.all(sides[:, None, :] >= sides[:, :, None], axis=0)
    is_lone = s["num_heads"] == 1.0  # another kernel
    larger &= is_lone[:, None] == is_lone
    least_s = np.where(larger, rows.seconds, np.inf).min(axis=1)
    return rows.where(least_s > HICCUP * rows.seconds)


def _fit_triton_form(name: str, rows: Rows, fixed: Numbers) -> FittedEntry:
    gpu, seen = load_gpu(rows.gpu), rows.where(~rows.held_out)
    numbers = form(name).fit(
        lambda numbers: form_seconds(seen.operator, gpu, {**numbers, **fixed}),
        seen.seconds,
        ridge=RIDGE,
    )
    entry = plain_entry(rows, {**numbers, **fixed})
    return judged(entry, [rows], len(rows), lambda part, e: fitted_seconds(part.operator, gpu, e))


UNIFIED, PHASE = "vllm_triton_attn", "prefill"
UNIFIED_GPUS = "b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000"
GROUP = 8.0
"""Query heads per key head: gpt-oss has 64 and 8."""

FEWEST_UNIFIED = 50


def fit_unified_triton(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the kernel's numbers, which all GPUs share."""
    table = tables_of(PHASE)[0]
    gpus = [rows for gpu in UNIFIED_GPUS for rows in _unified_rows(reference / table, gpu)]
    ratio = np.concatenate(
        [
            rows.seconds / unified_seconds(rows.operator, load_gpu(rows.gpu), numbers)
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
    table = read_table(file, gpu=NAMED.get(gpu, gpu), kernel=UNIFIED)
    for part in measured_in(table, gpu, PHASE, FEWEST_UNIFIED):
        if part.framework == TIMED_BY:
            yield part.where(part.sizes["num_heads"] == GROUP * part.sizes["num_key_value_heads"])


def _fit_unified(gpus: Sequence[Rows]) -> dict[str, float]:
    return form("triton_unified").fit(
        lambda numbers: np.concatenate(
            [unified_seconds(rows.operator, load_gpu(rows.gpu), numbers) for rows in gpus]
        ),
        np.concatenate([rows.seconds for rows in gpus]),
        ridge=RIDGE,
    )


AUXILIARY_ROWS, CHAIN_RIDGE = 2000, 0.01
AUXILIARY_ALPHA, AUXILIARY_TREES, AUXILIARY_DEPTH = 0.6, 40, 3
FEWEST_AUXILIARY = 60
"""Least fitted rows for trees; with fewer than half of them a kernel has no entry."""


def fit_auxiliary_kernels(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for name in chosen(only, [*AUXILIARY_GPUS, *LAYER_GPUS]):
        gpu = load_gpu(name)
        if name not in AUXILIARY_GPUS:
            chains = [_fit_chain(part, gpu) for part in read_chain_rows(reference, name)]
            yield entries("auxiliary_chains", name, chains)
            continue
        by_name = grouped(read_auxiliary_rows(reference, name), lambda part: part.name)
        done = [
            _fit_auxiliary(parts, gpu)
            for parts in by_name.values()
            if sum(np.count_nonzero(~part.held_out) for part in parts) >= FEWEST_AUXILIARY / 2
        ]
        yield entries("auxiliary_kernels", name, done)


def _fit_chain(rows: Rows, gpu: Gpu) -> FittedEntry:
    """Return the entry of one pointwise chain."""
    seen = rows.where(~rows.held_out)
    operator = seen.operator
    numbers = form("chain").fit(
        lambda numbers: chain_seconds(operator, gpu, numbers), seen.seconds, ridge=CHAIN_RIDGE
    )
    return judged(
        plain_entry(rows, numbers),
        [rows],
        len(seen),
        lambda part, entry: chain_seconds(part.operator, gpu, entry.numbers),
    )


def _fit_auxiliary(parts: Sequence[Rows], gpu: Gpu) -> FittedEntry:
    seen = [part.where(~part.held_out) for part in parts]
    names = ("flops", "moved_bytes", "blocks", "longest", "features")
    works = [auxiliary_kernels.work_of(part.operator) for part in seen]
    columns = [np.concatenate([getattr(w, name) for w in works], axis=-1) for name in names]
    work, seconds = (
        auxiliary_kernels.KernelWork(*columns),
        np.concatenate([part.seconds for part in seen]),
    )
    few = evenly(seconds.size, AUXILIARY_ROWS)
    some = auxiliary_kernels.KernelWork(*(column[..., few] for column in columns))
    numbers = form("auxiliary").fit(
        lambda numbers: auxiliary_kernels.form_seconds(some, "bf16", gpu, numbers),
        seconds[few],
        ridge=RIDGE,
    )
    entry = plain_entry(parts[0], numbers)
    if seconds.size >= FEWEST_AUXILIARY:
        plain_s = auxiliary_kernels.form_seconds(work, "bf16", gpu, numbers)
        correction = fit_correction(
            work.features,
            plain_s,
            seconds,
            alpha=AUXILIARY_ALPHA,
            trees=AUXILIARY_TREES,
            depth=AUXILIARY_DEPTH,
        )
        entry = replace(entry, correction=correction)
    return judged(
        entry,
        parts,
        seconds.size,
        lambda part, e: auxiliary_kernels.fitted_seconds(part.operator, gpu, e),
    )
