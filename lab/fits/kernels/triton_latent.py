"""Fit Triton's latent attention: decode as vLLM timed it, prompts as ordinary heads of 512 numbers.

Decode is fitted to an A100's calls. None is shorter than 295 us, the time of the host that launched
them, so only calls twice as long as the shortest show the kernel's own time; those slower than a
larger step are hiccups of the host.

Prompts were timed where SGLang runs Triton alone. Ordinary heads of 512 numbers have tiles of the
same height and were timed on Hopper; their numbers serve all GPUs that run the latent kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.kernels.decode_attention import multiplies_by_warps
from lab.fits.methods.entries import FittedEntry, judged, plain_entry
from lab.fits.methods.forms import Numbers, form
from lab.tables.fused_kernels import LEAST_ROWS, NAMED, measured_in, tables_of
from lab.tables.rows import Rows, is_host_timed, read_table
from simulators.catalog.gpu import load_gpu
from simulators.evidence.transfer import LIBRARY_ALONE, library_of
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.latent_attention import MOST_SPLITS, SPLITS

KERNEL, TIMED_BY = "mla_decode", "vllm"
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
RIDGE = 0.1


def fit_triton(reference: Path, gpu: str) -> Iterator[FittedEntry]:
    """Yield the entries of Triton's latent attention on a GPU, under the names it is found by."""
    if multiplies_by_warps(load_gpu(gpu)):
        table = read_table(reference / tables_of(KERNEL)[0], gpu=NAMED.get(gpu, gpu))
        for part in measured_in(table, gpu, KERNEL, LEAST_ROWS):
            if part.framework == TIMED_BY and is_host_timed(part):
                fitted = _fit("triton_latent", beyond_host(part), {SPLITS: FIXED_SPLITS})
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
                yield replace(_fit("triton_prompt", part, {}), name=name)


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


def _fit(name: str, rows: Rows, fixed: Numbers) -> FittedEntry:
    gpu, seen = load_gpu(rows.gpu), rows.where(~rows.held_out)
    numbers = form(name).fit(
        lambda numbers: form_seconds(seen.operator, gpu, {**numbers, **fixed}),
        seen.seconds,
        ridge=RIDGE,
    )
    entry = plain_entry(rows, {**numbers, **fixed})
    return judged(entry, [rows], len(rows), lambda part, e: fitted_seconds(part.operator, gpu, e))
