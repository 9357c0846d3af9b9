"""Fit Triton's latent attention: decode as vLLM timed it, prompts as wide ordinary heads are.

Decode is fitted to an A100's calls, the host's part left aside. Not one of these is shorter than
295 us, the time of the host that launched them. A kernel that takes longer hides its host, so the
longer calls are its own: those twice as long as the shortest. Hiccups of the host are among them,
told by larger steps that took less.

Prompts were timed where SGLang runs Triton's alone. Ordinary heads of 512 numbers, which have tiles
of the same height, were timed on Hopper: numbers fitted to those are lent to all who run the latent
kernel, and no row of it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.kernels.form_starts import TRITON_LATENT, TRITON_PROMPT
from lab.fits.methods.entries import Fitted, judged, plain_entry
from lab.tables.kernels.fused_kernels import LEAST_ROWS, NAMED, measured_in, tables_of
from lab.tables.rows import Rows, is_host_timed, read_table
from planning.calibrate.least_squares import fit_named
from simulators.catalog.gpu import load_gpu
from simulators.evidence.borrowing import LIBRARY_ALONE, instructions, library_of
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.triton.latent_decode import MOST_SPLITS, SPLITS

KERNEL, TIMED_BY = "mla_decode", "vllm"

FIXED_SPLITS = 4.0
"""vLLM's; SGLang's kernel is the same but for them."""

DEALT: dict[str, dict[str, float]] = {
    "triton": {SPLITS: 0.0},
    "triton_8": {SPLITS: 0.0, MOST_SPLITS: 8.0},
}
"""What says how SGLang deals out keys, today and in releases of 2025, by the name of a library."""

HIDDEN, HICCUP = 2.0, 0.8
"""Of the shortest call's time: beyond it a kernel hides its host; and of a larger step's."""

PROMPTS, PROMPT_DTYPE, WIDE_HEADS, FEWEST_WIDE = "mla_prefill", "bf16_bf16", 512, 100

REACH, RIDGE = 4.0, 0.1


def fit_triton(reference: Path, gpu: str) -> Iterator[Fitted]:
    """Yield what a GPU's rows say of Triton's latent attention, by whose name it is looked up."""
    yield from _decodes(reference, gpu)
    if library_of("sglang", PROMPTS, load_gpu(gpu).architecture) != LIBRARY_ALONE:
        yield from _prompts(reference, gpu)


def _decodes(reference: Path, gpu: str) -> Iterator[Fitted]:
    """Yield the kernel as vLLM runs it on a GPU, and as SGLang does."""
    if load_gpu(gpu).architecture not in instructions()["warp"]:
        return
    table = read_table(reference / tables_of(KERNEL)[0], gpu=NAMED.get(gpu, gpu))
    for part in measured_in(table, gpu, KERNEL, LEAST_ROWS):
        if part.framework == TIMED_BY and is_host_timed(part):
            rows = beyond_host(part)
            fitted = _fit(rows, TRITON_LATENT, {SPLITS: FIXED_SPLITS})
            yield fitted
            for library, dealt in DEALT.items():
                entry = replace(fitted.entry, numbers={**fitted.entry.numbers, **dealt})
                yield replace(fitted, name=fitted.name.replace(TIMED_BY, library), entry=entry)


def _prompts(reference: Path, gpu: str) -> Iterator[Fitted]:
    """Yield the kernel of prompts, fitted to ordinary heads as wide as a latent's values."""
    file = reference / tables_of("prefill")[0]
    if not file.is_file():
        return
    table = read_table(file, gpu=NAMED.get(gpu, gpu), kernel=LIBRARY_ALONE, head_dim=WIDE_HEADS)
    for part in measured_in(table, gpu, "prefill", FEWEST_WIDE):
        if part.dtype == PROMPT_DTYPE:
            name = f"{LIBRARY_ALONE}.{PROMPTS}.{PROMPT_DTYPE}"
            yield replace(_fit(part, TRITON_PROMPT, {}), name=name)


def beyond_host(rows: Rows) -> Rows:
    """Return the rows whose time is the kernel's own."""
    rows = rows.where(rows.seconds > HIDDEN * rows.seconds.min())
    s = rows.sizes
    sides = np.stack([s["batch_size"], s["isl"] + s["step"], s["num_heads"]])
    larger = np.all(sides[:, None, :] >= sides[:, :, None], axis=0)
    is_lone = s["num_heads"] == 1.0  # another kernel
    larger &= is_lone[:, None] == is_lone
    least_s = np.where(larger, rows.seconds, np.inf).min(axis=1)
    return rows.where(least_s > HICCUP * rows.seconds)


def _fit(rows: Rows, form: Mapping[str, float], fixed: Mapping[str, float]) -> Fitted:
    gpu, seen = load_gpu(rows.gpu), rows.where(~rows.held_out)
    first = np.log(list(form.values()))
    numbers = fit_named(
        lambda n: form_seconds(seen.operator, gpu, {**n, **fixed}),
        list(form),
        first,
        seen.seconds,
        low=first - REACH,
        high=first + REACH,
        ridge=RIDGE,
    )
    entry = plain_entry(rows, {**numbers, **fixed})
    return judged(entry, [rows], len(rows), lambda part, e: fitted_seconds(part.operator, gpu, e))
