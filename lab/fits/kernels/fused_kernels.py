"""Fit attention and experts to loops timed on the GPU: `python -m lab.fits fused_kernels`.

On half of all shapes: first the few numbers of the form, then the trees. Of the other half, one
half again gives the 90 % interval and the rest judges it; errors are of both. Decode has grids in
the place of trees, and is judged by octaves (`decode_attention.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.driver import Calibration, chosen, hashes
from lab.fits.kernels.decode_attention import WARP, fit_decode
from lab.fits.kernels.form_starts import FORMS, PARTS, TRITON_PROMPT, WARP_PROMPT
from lab.fits.kernels.triton_latent import fit_triton
from lab.fits.methods.bands import band_of, stretched
from lab.fits.methods.entries import Fitted, entries, judged, plain_entry
from lab.fits.methods.monotone_trees import fit_bend
from lab.tables.kernels.expert_layers import FRONTIER, FRONTIER_GPUS, read_layers
from lab.tables.kernels.fused_kernels import (
    GPUS,
    NARROW,
    TABLES,
    models_of,
    products_of,
    read_measured,
    tables_of,
)
from lab.tables.kernels.prompt_chunks import (
    CHUNK_GPUS,
    CHUNKS,
    MIXED,
    MIXED_GPUS,
    POINT_GPUS,
    POINTS,
    read_chunks,
)
from lab.tables.rows import Floats, Groups, Rows, joined
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.evidence.borrowing import LIBRARY_ALONE, instructions, library_of
from simulators.evidence.calibration_files import CALIBRATIONS
from simulators.evidence.intervals import Band
from simulators.kernels.entries import Entry
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.experts import fitted_expert_seconds
from simulators.kernels.families.fused import (
    TUNED,
    attention_features,
    expert_features,
    expert_seconds,
    mixed_features,
)
from simulators.kernels.monotone_correction import Correction

FOLDER = CALIBRATIONS / "fused"

FORM_ROWS, TREE_ROWS = 3000, 8000
"""Rows a fit looks at, drawn evenly; more of them say nothing new."""

ALPHA, TREES, DEPTH = 0.5, 64, 4
"""Trees add nothing beyond: laws, not their number, bound the error."""

RIDGE = 0.1
REACH = 4.0
"""No number leaves where it started by more than a factor of 55."""

MOST = {"prefill": {"tile": 64.0}, "mixed": {"tile": 64.0}, "experts": {"pad": 128.0}}
"""Half of the tallest tile of query rows. Whole prompts hardly tell a tile from a step, and a
taller one would make a short chunk pay for its whole prefix many times over."""

LEAST = {"tall": 1.0, "unaligned": 1.0}
"""Tall tiles read no faster than low ones, and odd widths no faster than even ones."""

MUCH_LESS = 0.9
"""Trees mend what is less; and some laws they mend better in one form than in the other."""

EXPERT_TREES, EXPERT_ALPHA = 32, 0.9
"""More trees, or leaving them more of the slope, foretell models that were left out no better."""

TUNED_TREES = {"sglang.experts.bf16": 64, "frontier.experts.bf16": 64}
"""Layers with habits of their own: SGLang's tuned tiles, Frontier's host."""

TUNED_TILES, TUNED_TOKENS, TUNED_LEAST = ("sglang.experts.bf16",), 1024.0, 1.5
"""SGLang ships tuned tiles by experts and width, for some of the layers that one group of GPUs has
whole: two and three times as fast where there are many tokens. What is faster than the form by
less than half is not told from chance."""

SHIPPED_TILES = {"a100_sxm": ((8, 1792), (8, 2048), (8, 3584), (8, 4096), (8, 7168))}
"""Experts and widths that tiles in 16 bits are shipped for, by the names of the configuration files
of vLLM's `fused_moe`, which SGLang ships too (`E=8,N=3584,device_name=NVIDIA_A100-SXM4-80GB.json`,
found in 2024): a layer that was never timed has them as well."""

NOTHING: Mapping[str, float] = {}

NARROW_SHIPPED = {
    **dict.fromkeys(
        ("h100_sxm", "h200_sxm"),
        (
            ("trtllm", "fp8_block"),
            ("sglang", "fp8_block"),
            ("trtllm", "mxfp4"),
            ("vllm", "mxfp4"),
            ("sglang", "mxfp4"),
            ("sglang", "w4a16"),
        ),
    ),
    "a100_sxm": (("sglang", "w4a16"),),
    "b200_sxm": (
        ("trtllm", "fp8_block"),
        ("trtllm", "fp4"),
        ("trtllm", "w4a8"),
        ("vllm", "fp4"),
        ("flashinfer", "fp8_block"),
    ),
    "rtx_pro_6000": (("trtllm", "fp4"),),
}
"""Experts in narrow formats that are kept, by whose kernels engines run."""

LIBRARY = {("b200_sxm", "vllm", "experts", "fp8_block"): "flashinfer"}
"""Kernels of a library, timed through a framework that others than itself are run by: vLLM's public
recipes switch them off, SGLang's ask for them."""

LEFT_OUT_ROWS, FEWEST_MODELS = 2000, 2
"""Rows of a kernel that are foretold group by group, drawn at random, and how few groups do."""

WRITTEN = (1e-3, 3)
"""How finely files hold trees: leaves in tenths of a percent, thresholds in three digits."""

KERNELS = (*TABLES, "mixed")

SISTERS = {"gb200": ("decode", "mla_prefill", "mla_decode")}
"""Boards whose sister's numbers serve them but in these kernels: they are what any other board of
the architecture is priced by when the sister is left out, and within some percent of hers."""

FEWEST_ROWS, FEWEST_TREE_ROWS = 60, 150
"""A kernel with fewer rows borrows from a relative; with fewer fitted ones it has no trees."""

SHIPPED = ("vllm", "trtllm", "flashinfer")
"""Calibrations stay small: a third framework's prefill is fitted where these have no table."""


def fit_reference(reference: Path, only: Sequence[str] = ()) -> Iterator[Calibration]:
    """Yield the calibrations of the GPUs of the tables."""
    for gpu in chosen(only, GPUS):
        kernels = SISTERS.get(gpu, KERNELS)
        found = [rows for kernel in kernels for rows in _kept(reference, gpu, kernel)]
        if done := [*map(fit_kernel, found), *fit_triton(reference, gpu)]:
            tables = hashes(reference, _tables(gpu, {rows.kernel for rows in found}))
            yield entries(gpu, done, tables, leaves=WRITTEN)


def _kept(reference: Path, gpu: str, kernel: str) -> list[Rows]:
    """Return the rows of a kernel that are fitted to, those of one name together."""
    found = [by_library(r) for r in read_measured(reference, gpu, kernel) if not r.variant]
    shipped = [r for r in found if r.framework in SHIPPED or kernel != "prefill"] or found
    narrow = NARROW_SHIPPED.get(gpu, ())  # the others are borrowed, as on H200
    shipped = [r for r in shipped if r.dtype not in NARROW or (r.framework, r.dtype) in narrow]
    shipped += read_chunks(reference, gpu, kernel)
    if kernel == "experts":
        shipped += read_layers(reference, gpu)
    together = joined(shipped, lambda rows: rows.name)
    return [rows for rows in together if len(rows) >= FEWEST_ROWS]


def by_library(rows: Rows) -> Rows:
    """Return rows under the name of the library whose kernel was timed, where it is another's."""
    place = rows.gpu, rows.framework, rows.kernel, rows.dtype
    return replace(rows, framework=LIBRARY.get(place, rows.framework))


def _tables(gpu: str, kernels: set[str]) -> list[str]:
    """Return the tables that the calibration of a GPU rests on."""
    others: list[tuple[str, Collection[str]]] = [
        (MIXED, MIXED_GPUS),
        (CHUNKS, CHUNK_GPUS),
        (POINTS, POINT_GPUS),
        (FRONTIER, FRONTIER_GPUS),
    ]
    return [
        *(table for kernel in TABLES if kernel in kernels for table in tables_of(kernel)),
        *(table for table, gpus in others if gpu in gpus),
    ]


def fit_kernel(rows: Rows) -> Fitted:
    """Return the entry of one kernel, fitted to half of its shapes.

    The interval of experts is that of models that were left out: most will be met unmeasured.
    """
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
    """Return the band of a group nobody measured, from predicted and measured seconds of others.

    Rows of a group err alike, so the next group falls outside the range of `n` more often than one
    row in ten: it is stretched by `1 + 1 / n`.
    """
    predicted, measured_s = (np.concatenate(column) for column in zip(*groups, strict=True))
    return stretched(band_of(predicted, measured_s), 1.0 + 1.0 / len(groups))


def left_out(rows: Rows, group: Callable[[Rows], Groups]) -> Iterator[tuple[Rows, Entry]]:
    """Yield the rows of each group, and the entry of a fit to all others."""
    groups, gpu = group(rows), load_gpu(rows.gpu)
    for one in np.unique(groups):
        aside = groups == one
        yield rows.where(aside), _fit(rows.where(~aside), gpu)


def _fit(seen: Rows, gpu: Gpu) -> Entry:
    """Return the entry of one kernel, fitted to all of these rows."""
    plain = plain_entry(seen, _fit_form(seen, gpu))
    return _fit_rest(seen, gpu, plain)


def _fit_rest(seen: Rows, gpu: Gpu, plain: Entry) -> Entry:
    """Return the entry with trees, if there are rows enough."""
    if len(seen) < FEWEST_TREE_ROWS:
        return plain
    trees = TUNED_TREES.get(seen.name, EXPERT_TREES if seen.kernel == "experts" else TREES)
    return replace(plain, correction=_fit_trees(seen, gpu, plain, trees))


def _fit_trees(rows: Rows, gpu: Gpu, plain: Entry, trees: int) -> Correction:
    features, seconds, target = _stacked(rows.thinned(TREE_ROWS), gpu, plain)
    alpha = EXPERT_ALPHA if rows.kernel == "experts" else ALPHA
    return fit_bend(features, seconds, target, alpha=alpha, trees=trees, depth=DEPTH)


def predicted_s(rows: Rows, gpu: Gpu, entry: Entry) -> Floats:
    """Return what an entry says of measured rows: of experts, both products together."""
    if rows.kernel != "experts":
        return fitted_seconds(rows.operator, gpu, entry)
    up, down = _products_s(rows, gpu, entry)
    return np.asarray(up + down, np.float64)


def _products_s(rows: Rows, gpu: Gpu, entry: Entry) -> list[Floats]:
    return [fitted_expert_seconds(sizes, rows.dtype, gpu, entry) for sizes in products_of(rows)]


def _fit_form(rows: Rows, gpu: Gpu) -> dict[str, float]:
    """Return the numbers of the form alone: the first form's, unless another errs much less."""
    some = rows.thinned(FORM_ROWS)
    forms = _forms(rows, gpu)
    fitted = [_fit_numbers(some, gpu, form) for form in forms]
    seconds = _form_of(some, gpu)
    errors = [float(np.mean(np.abs(np.log(seconds(one) / some.seconds)))) for one in fitted]
    best = int(np.argmin(errors))
    best = best if errors[best] < MUCH_LESS * errors[0] else 0
    found = fitted[best]
    if rows.name not in TUNED_TILES:
        return found
    s = rows.sizes
    tuned = _tuned(
        rows.where((s["moe_ep_size"] == 1) & (s["num_tokens"] >= TUNED_TOKENS)), gpu, found
    )
    return _fit_numbers(some, gpu, forms[best], tuned) | tuned


def _forms(rows: Rows, gpu: Gpu) -> tuple[Mapping[str, float], ...]:
    """Return the forms that a kernel may have; of latent prompts by warps the usual is not one."""
    usual, *others = FORMS[rows.kernel.removeprefix("mla_")]
    if rows.kernel == "mla_prefill" and gpu.architecture in instructions()[WARP]:
        whose = library_of(rows.framework, rows.kernel, gpu.architecture)
        usual = TRITON_PROMPT if whose == LIBRARY_ALONE else WARP_PROMPT
    return (usual, *others)


def _tuned(rows: Rows, gpu: Gpu, numbers: dict[str, float]) -> dict[str, float]:
    """Return how much faster than the form the layers run that have tiles of their own."""
    up, _ = products_of(rows)
    faster, found = _form_of(rows, gpu)(numbers) / rows.seconds, {}
    for experts, width in sorted(set(zip(up.experts.tolist(), up.width.tolist(), strict=True))):
        mine = (up.experts == experts) & (up.width == width)
        speedup = float(np.median(faster[mine]))
        if speedup > TUNED_LEAST:
            found[_tuned_name(experts, width)] = speedup
    if found:
        typical = float(np.median(list(found.values())))
        found = {_tuned_name(*shape): typical for shape in SHIPPED_TILES.get(rows.gpu, ())} | found
    return found


def _tuned_name(experts: float, width: float) -> str:
    """Return what the speed-up of a shape of layers is called."""
    return f"{TUNED}{experts:.0f}_{width:.0f}"


def _fit_numbers(
    rows: Rows, gpu: Gpu, form: Mapping[str, float], fixed: Mapping[str, float] = NOTHING
) -> dict[str, float]:
    """Return the numbers of one form, others being given."""
    start = np.log(list(form.values()))
    ends = [0.0 if n in PARTS else x + REACH for n, x in zip(form, start, strict=True)]
    most = [np.log(MOST.get(rows.kernel, {}).get(name, np.inf)) for name in form]
    high = np.minimum(ends, most)
    least = [
        np.log(LEAST.get(name, x)) for name, x in zip(form, np.exp(start - REACH), strict=True)
    ]
    seconds = _form_of(rows, gpu)
    return fit_named(
        lambda numbers: seconds({**numbers, **fixed}),
        list(form),
        np.minimum(start, high),
        rows.seconds,
        low=np.array(least),
        high=high,
        ridge=RIDGE,
    )


def _form_of(rows: Rows, gpu: Gpu) -> Callable[[dict[str, float]], Floats]:
    """Return the uncorrected seconds as a function of the form's numbers."""
    if rows.kernel == "experts":
        products = products_of(rows)
        return lambda numbers: np.asarray(
            sum(expert_seconds(sizes, rows.dtype, gpu, numbers) for sizes in products)
        )
    attention = rows.operator
    return lambda numbers: form_seconds(attention, gpu, numbers)


def _stacked(rows: Rows, gpu: Gpu, plain: Entry) -> tuple[Floats, Floats, Floats]:
    """Return features, formula and target; a layer's time is shared by its products as computed."""
    if rows.kernel != "experts":
        seconds = predicted_s(rows, gpu, plain)
        looked_at = mixed_features if rows.kernel == "mixed" else attention_features
        return looked_at(rows.operator, seconds.shape), seconds, rows.seconds
    each = _products_s(rows, gpu, plain)
    miss = rows.seconds / (each[0] + each[1])
    features = np.concatenate([expert_features(sizes) for sizes in products_of(rows)], axis=1)
    return features, np.concatenate(each), np.concatenate([part * miss for part in each])
