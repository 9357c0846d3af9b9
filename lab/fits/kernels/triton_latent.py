"""Fit Triton's latent decode to what vLLM timed of it on an A100, the host's part left aside.

Not one of these calls is shorter than 295 us, the time of the host that launched them. A kernel
that takes longer hides its host, so the longer calls are its own: those twice as long as the
shortest. Hiccups of the host are among them, told by larger steps that took less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fits.methods.entries import Fitted, judged, plain_entry
from lab.fits.methods.least_squares import fit_named
from lab.tables.kernels.fused_kernels import LEAST_ROWS, NAMED, measured_in, tables_of
from lab.tables.rows import Rows, is_host_timed, read_table
from simulators.catalog.gpu import load_gpu
from simulators.evidence.borrowing import instructions
from simulators.kernels.families.attention import fitted_seconds, form_seconds
from simulators.kernels.families.latent_triton import MOST_SPLITS, SPLITS, TRITON_LATENT

KERNEL, TIMED_BY = "mla_decode", "vllm"

FIXED_SPLITS = 4.0
"""vLLM's; SGLang's kernel is the same but for them."""

DEALT: dict[str, dict[str, float]] = {
    "triton": {SPLITS: 0.0}, "triton_8": {SPLITS: 0.0, MOST_SPLITS: 8.0},
}  # fmt: skip
"""What says how SGLang deals out keys, today and in releases of 2025, by the name of a library."""

HIDDEN, HICCUP = 2.0, 0.8
"""Of the shortest call's time: beyond it a kernel hides its host; and of a larger step's."""

REACH, RIDGE = 4.0, 0.1


def fit_triton(reference: Path, gpu: str) -> Iterator[Fitted]:
    """Yield the kernel as vLLM runs it on a GPU, and as SGLang does."""
    if load_gpu(gpu).architecture not in instructions()["warp"]:
        return
    table = read_table(reference / tables_of(KERNEL)[0], gpu=NAMED.get(gpu, gpu))
    for part in measured_in(table, gpu, KERNEL, LEAST_ROWS):
        if part.framework == TIMED_BY and is_host_timed(part):
            rows = beyond_host(part)
            fitted = _fit(rows)
            yield fitted
            for library, dealt in DEALT.items():
                entry = replace(fitted.entry, numbers={**fitted.entry.numbers, **dealt})
                yield replace(fitted, name=fitted.name.replace(TIMED_BY, library), entry=entry)


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


def _fit(rows: Rows) -> Fitted:
    gpu, seen = load_gpu(rows.gpu), rows.where(~rows.held_out)
    first = np.log(list(TRITON_LATENT.values()))
    fixed = {SPLITS: FIXED_SPLITS}
    numbers = fit_named(
        lambda n: form_seconds(seen.operator, gpu, {**n, **fixed}),
        list(TRITON_LATENT),
        first,
        seen.seconds,
        low=first - REACH,
        high=first + REACH,
        ridge=RIDGE,
    )
    entry = plain_entry(rows, {**numbers, **fixed})
    return judged(entry, [rows], len(rows), lambda part, e: fitted_seconds(part.operator, gpu, e))
