"""Fit attention and mixture-of-experts kernels to loops timed on the GPU.

The form's numbers are fitted to half of all shapes, then monotone trees to what the form misses. Of
the other half, one half gives the 90 % interval and the rest judges it; errors are of both. Decode
has grids in place of trees (`decode_attention.py`). `fused_kernels.toml` says what is fitted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen
from lab.fits.kernels.decode_attention import fit_decode, multiplies_by_warps
from lab.fits.kernels.triton_latent import fit_triton
from lab.fits.methods.entries import FittedEntry, entries, judged, plain_entry
from lab.fits.methods.forms import Numbers, form
from lab.fits.methods.held_out import band_of
from lab.fits.methods.monotone_trees import fit_correction
from lab.tables import fused_kernels
from lab.tables.fused_kernels import (
    FRONTIER,
    FRONTIER_GPUS,
    GPUS,
    NARROW,
    TABLES,
    models_of,
    products_of,
    read_layers,
    read_measured,
    tables_of,
)
from lab.tables.rows import Floats, Groups, Rows, joined
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.evidence.intervals import Band
from simulators.evidence.transfer import LIBRARY_ALONE, library_of
from simulators.kernels.families.attention import (
    attention_features,
    fitted_seconds,
    form_seconds,
    mixed_features,
)
from simulators.kernels.families.experts import (
    TUNED,
    expert_features,
    expert_seconds,
    fitted_expert_seconds,
)
from simulators.kernels.families.family import Entry

FOLDER = CALIBRATIONS / "fused"
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
"""Slope left to the form, and trees: more predict models left out no better."""

TUNED_NAME, TUNED_TOKENS, TUNED_LEAST = "sglang.experts.bf16", 1024.0, 1.5
"""SGLang ships tuned tiles for some layers: two to three times as fast where tokens are many."""

LEFT_OUT_ROWS, FEWEST_MODELS = 2000, 2
FEWEST_ROWS, FEWEST_TREE_ROWS = 60, 150
"""Least rows of a kernel to be fitted, and least fitted rows for trees."""

SHIPPED = ("vllm", "trtllm", "flashinfer")
"""Prefill of other frameworks is fitted only where these have no table."""


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for gpu in chosen(only, GPUS):
        kernels = CONFIG["only"].get(gpu, KERNELS)
        found = [rows for kernel in kernels for rows in _kept(reference, gpu, kernel)]
        if done := [*map(fit_kernel, found), *fit_triton(reference, gpu)]:
            tables = _tables(gpu, {rows.kernel for rows in found})
            yield entries(gpu, done, tables, leaf_step=1e-3, digits=3)


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
    """Return the entry of one kernel; the interval of experts is that of models left out."""
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
    """Return predicted seconds of measured rows: of experts, both products together."""
    if rows.kernel != "experts":
        return fitted_seconds(rows.operator, gpu, entry)
    up, down = _products_s(rows, gpu, entry)
    return np.asarray(up + down, np.float64)


def _products_s(rows: Rows, gpu: Gpu, entry: Entry) -> list[Floats]:
    return [fitted_expert_seconds(sizes, rows.dtype, gpu, entry) for sizes in products_of(rows)]


def _fit_form(rows: Rows, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the first form, unless another form's error is much less."""
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
    """Return how much faster than the form the layers with tuned tiles run."""
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
