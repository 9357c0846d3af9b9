"""Mean request lengths for the steady state: tokens, query-key pairs, keys read by decodes.

Drawn lengths and traces are averaged over the requests that an event simulation of the same point
serves, without requests longer than the context. A system prompt is computed for every request, or
is a prefix cache hit for every request: the first computation is neglected. With hashes of a trace,
every earlier block is a prefix cache hit: evictions are not modelled.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.core.columns import categories, numbers
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.requests import max_prefix_hits, token_counts
from simulators.serving.steady.columns import Lengths

NAMES = tuple(f.name for f in fields(Lengths))


def lengths_of(batch: pa.RecordBatch, context: Floats) -> tuple[Lengths, Ints]:
    """Return the lengths of every row, and a group number that is equal for equal lengths.

    `context` is the longest prompt and output together that each row allows.
    """
    system = numbers(batch, "sessions.system_prompt_tokens").astype(np.float64)
    context = context - system
    prompts, prompt_values = categories(batch, "prompt_tokens")
    outputs, output_values = categories(batch, "output_tokens")
    prompt = np.array(prompt_values, np.float64)[prompts]
    output = np.array(output_values, np.float64)[outputs]
    code = prompts * len(output_values) + outputs
    total = prompt + output
    total[total > context] = np.nan
    prompt, output = prompt + 0.0 * total, output + 0.0 * total
    columns = {
        "prompt": prompt,
        "output": output,
        "found": 0.0 * total,
        "pairs": prompt * (prompt + 1.0) / 2.0,
        "keys": prompt + output / 2.0,
        "prompt_scv": 0.0 * total,
        "output_scv": 0.0 * total,
        "longest": prompt.copy(),
        "fitting": 1.0 + 0.0 * total,
    }
    drawn = np.flatnonzero((prompt == 0.0) | (output == 0.0))
    if drawn.size:
        code = code + len(prompt_values) * len(output_values) * _fill(
            columns, batch, drawn, context
        )
    if system.any():
        cached = numbers(batch, "cache.prefix_caching").astype(bool)
        _precede(columns, computed=np.where(cached, 0.0, system), found=system * cached)
        kinds = np.unique(np.stack((system, cached)), axis=1, return_inverse=True)[1].reshape(-1)
        code = code * batch.num_rows + kinds
    return Lengths(**columns), code


def _precede(columns: dict[str, Floats], *, computed: Floats, found: Floats) -> None:
    """Prepend a system prompt to every prompt: computed tokens and cached tokens."""
    prompt = columns["prompt"]
    longer = prompt + computed
    columns["pairs"] += computed * prompt + computed * (computed + 1.0) / 2.0 + found * longer
    columns["prompt_scv"] *= (prompt / longer) ** 2
    columns["keys"] += computed + found
    columns["longest"] += computed
    columns["found"] += found
    columns["prompt"] = longer


def _fill(columns: dict[str, Floats], batch: pa.RecordBatch, drawn: Ints, context: Floats) -> Ints:
    """Write the means of rows with drawn lengths; return a group number per row, 0 for the rest."""
    workloads, names = categories(batch, "workload")
    keys = [workloads.astype(np.float64), context]
    keys += [
        numbers(batch, name).astype(np.float64)
        for name in ("requests", "seed", "prompt_tokens", "output_tokens", "cache.prefix_caching")
    ]
    distinct, member = np.unique(
        np.stack([key[drawn] for key in keys], axis=1), axis=0, return_inverse=True
    )
    means = np.empty((len(distinct), len(NAMES)))
    for row, (name, most, *numbers_of) in enumerate(distinct):
        means[row] = _means(str(names[int(name)]), most, *map(int, numbers_of))
    kind = np.zeros(batch.num_rows, np.int64)
    kind[drawn] = member.reshape(-1) + 1
    for column, name in enumerate(NAMES):
        columns[name][drawn] = means[member.reshape(-1), column]
    return kind


def _means(
    workload: str, context: float, requests: int, seed: int, prompt: int, output: int, cached: int
) -> NDArray[np.float64]:
    """Return the means of the requests of a workload, in the order of `NAMES`."""
    prompts, outputs = token_counts(workload, seed, requests)
    prompts = np.full(prompts.size, prompt) if prompt else prompts
    outputs = np.full(prompts.size, output) if output else outputs
    found = np.zeros(prompts.size)
    if cached and not prompt:
        found = max_prefix_hits(workload, prompts, outputs).astype(np.float64)
    fits = prompts + outputs <= context
    if not fits.any():
        return np.full(len(NAMES), np.nan)
    p, d, f = prompts[fits].astype(np.float64), outputs[fits].astype(np.float64), found[fits]
    later = d - 1.0
    keys = float((later * (p + d / 2.0)).sum() / later.sum()) if later.any() else float(p.mean())
    new = p - f
    spread = [float(x.var() / x.mean() ** 2) for x in (new, d)]
    pairs = new * (new + 1.0) / 2.0 + f * new
    return np.array(
        [new.mean(), d.mean(), f.mean(), pairs.mean(), keys, *spread, new.max(), fits.mean()]
    )
