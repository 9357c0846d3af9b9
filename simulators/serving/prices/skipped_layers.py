"""Dynamic inference: early exit, mixture of depths and pruned prompts.

Early exit (Schuster et al., CALM, 2022; Chen et al., EE-LLM, 2024): a decoded token stops after a
share of the layers that varies between tokens. A layer runs while any token of the batch needs it:
with `B` tokens, of which a share `s` reaches the layer, the layer runs with probability
`1 - (1 - s)^B`. Prompts pass all layers. The KV cache of skipped layers is stored all the same.

Mixture of depths (Raposo et al., 2024): every other layer processes a fixed share of all tokens.
These tokens attend to each other alone and alone write keys. Pruned prompts (Chen et al., FastV,
2024; Fu et al., LazyLLM, 2024): after the first few layers a share of the prompt tokens is
processed; later tokens may still attend to all of them.

The model is split into segments of layers that process the same shares of tokens. The time of an
iteration is the sum over layers, each priced at the expected number of tokens.
"""

from __future__ import annotations

from math import inf

import numpy as np

from simulators.composition.replica import NOTHING
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel
from simulators.serving.point import ADDITIVE, ServingPoint
from simulators.serving.prices.iteration_table import IterationTable
from simulators.serving.prices.lookup import (
    MIXED_TABLE,
    add_decodes,
    add_head,
    add_prefills,
    add_rows,
    add_waits,
    join_attention,
)

ROUTED_LAYERS = 0.5
"""Share of layers that a mixture of depths routes tokens around: every other layer."""

SLICES, TOKENS = 8, 512
"""Equal slices of the depth where tokens leave at different ones, each at its mean share, and
tokens by which that is found: choices, for the time of a price grows with the slices. Twice as many
move what a decode of Llama-3.1-8B takes by .3 % in a batch of 8 and by 1.3 % in one of 256."""

INTEGRATION_STEPS = 4096
"""Steps in which the distribution of exit depths is integrated."""

LAYERS, DECODED, PROMPTS, ROUTED, COLUMNS = 0, 1, 2, 3, 4
"""A segment's share of the layers, and the shares of decoded tokens, of tokens of prompts and of
all of them, and so of their keys, that its layers see."""

SHAPE_END, TABLE_END, SEGMENTS = -3, -2, -1
"""Entries of `shape`, from its end: where that of the replica ends, and its table, and how many
segments stand behind that."""


def kept_keys(point: ServingPoint) -> float:
    """Return the share of a full KV cache that tokens write under a mixture of depths."""
    return 1.0 - ROUTED_LAYERS * (1.0 - point.dynamic.mod_capacity)


def skips_layers(point: ServingPoint) -> bool:
    """Return whether some tokens skip some layers."""
    return (
        min(point.dynamic.exit_depth, point.dynamic.mod_capacity, point.dynamic.prune_keep_ratio)
        < 1.0
    )


def segments_of(point: ServingPoint, layers: int) -> Floats:
    """Return the segments of a model's layers, one row each.

    Raises:
        Infeasible: no shares of layers between 0 and 1 differ so much.
    """
    exits, ends = np.full(1, point.dynamic.exit_depth), np.full(1, point.dynamic.exit_depth)
    if point.dynamic.exit_depth_std:
        exits = beta_quantiles(point.dynamic.exit_depth, point.dynamic.exit_depth_std, TOKENS)
        found = exits.mean()  # a little off where most tokens leave at one of the ends
        low, high = (
            point.dynamic.exit_depth / found,
            (1.0 - point.dynamic.exit_depth) / (1.0 - found),
        )
        exits = low * exits if low < 1.0 else 1.0 - high * (1.0 - exits)
        ends = np.arange(1, SLICES) / SLICES
    pruned = (
        min(1.0, point.dynamic.prune_after_layer / layers)
        if point.dynamic.prune_keep_ratio < 1.0
        else 1.0
    )
    ends = np.unique([*ends, pruned, 1.0])
    begins = np.concatenate([[0.0], ends[:-1]])
    deep = (exits - begins[:, None]) / np.maximum(ends - begins, 1e-12)[:, None]
    running = np.clip(deep, 0.0, 1.0).mean(axis=1)
    kept = np.where(begins >= pruned, point.dynamic.prune_keep_ratio, 1.0)
    whole = np.stack([ends - begins, running, kept, np.ones(ends.size)], axis=1)
    if point.dynamic.mod_capacity == 1.0:
        return whole[whole[:, LAYERS] > 0.0]
    whole[:, LAYERS] *= 1.0 - ROUTED_LAYERS
    routed = whole * [ROUTED_LAYERS / (1.0 - ROUTED_LAYERS), 1.0, 1.0, point.dynamic.mod_capacity]
    both = np.concatenate([whole, routed])
    return both[both[:, LAYERS] > 0.0]


def beta_quantiles(mean: float, deviation: float, count: int) -> Floats:
    """Return `count` quantiles of a beta distribution, at the middles of equal shares.

    Raises:
        Infeasible: no distribution between 0 and 1 has this deviation.
    """
    concentration = mean * (1.0 - mean) / deviation**2 - 1.0
    if concentration <= 0.0:
        raise Infeasible("exit_spread_too_wide", f"{deviation:g} around {mean:g}")
    values = (np.arange(INTEGRATION_STEPS) + 0.5) / INTEGRATION_STEPS
    logs = (mean * concentration - 1.0) * np.log(values) + (
        (1.0 - mean) * concentration - 1.0
    ) * np.log1p(-values)
    share = np.cumsum(np.exp(logs - logs.max()))
    found: Floats = np.interp((np.arange(count) + 0.5) / count, share / share[-1], values)
    return found


def with_segments(table: IterationTable, point: ServingPoint, layers: int) -> tuple[Ints, Floats]:
    """Return shape and table of a replica and of its segments.

    Raises:
        Infeasible: what else is asked for is not modelled where tokens skip layers.
    """
    for name, wrong in (
        ("pp_1", point.pp > 1),
        ("attention_dp_1", point.attention_dp > 1),
        (
            "no_drafts",
            point.speculation.method != NOTHING and point.speculation.num_draft_tokens > 0,
        ),
        ("no_adapters", point.lora.adapters > 0),
        ("composition", bool(point.iteration_table)),
        ("one_pass", point.scheduling.mixed_step == ADDITIVE),
    ):
        if wrong:
            raise Infeasible(f"skipped_layers_need_{name}")
    segments = segments_of(point, layers)
    ends = np.array([table.shape.size, table.table.size, len(segments)], np.int64)
    return np.concatenate([table.shape, ends]), np.concatenate([table.table, segments.ravel()])


@kernel(PRICE)
def skipping_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of a batch whose tokens skip layers; the head and the host process all.

    A layer processes the expected decodes that reach the layer, given that any do; with prompts,
    which pass all layers, unconditionally. `price` has space for one more price and step.
    """
    ends, numbers = shape[shape.size + SHAPE_END], shape[TABLE_END]
    known, layers = table[:numbers], shape[:ends]
    mine, part = price[: at.PRICE_COLUMNS], price[at.PRICE_COLUMNS : 2 * at.PRICE_COLUMNS]
    seen = price[2 * at.PRICE_COLUMNS : 2 * at.PRICE_COLUMNS + at.STEP_COLUMNS]
    mine[:], part[:] = 0.0, 0.0
    has_prompts, all_decodes, prompts = step[at.PREFILLS] > 0.0, step[at.DECODES], -1.0
    for column in range(at.STEP_COLUMNS):
        seen[column] = step[column]
    read_s, read_j, until = 0.0, 0.0, inf
    for segment in range(shape[SEGMENTS]):
        row = numbers + COLUMNS * segment
        routed = table[row + ROUTED]
        share, weight = table[row + DECODED] * routed, table[row + LAYERS]
        if not has_prompts and share < 1.0:
            runs = 1.0 - (1.0 - share) ** all_decodes
            if runs == 0.0:
                continue
            share, weight = share / runs, weight * runs
        if has_prompts and table[row + PROMPTS] * routed != prompts:
            prompts = table[row + PROMPTS] * routed
            seen[at.PREFILL_TOKENS] = step[at.PREFILL_TOKENS] * prompts
            seen[at.PREFILL_KV] = step[at.PREFILL_KV] * prompts
            seen[at.PREFILL_PAIRS] = step[at.PREFILL_PAIRS] * prompts * prompts
            part[at.LAST_STAGE_S] = part[at.ENERGY_J] = 0.0
            add_prefills(seen, layers, known, part)
            read_s, read_j = part[at.LAST_STAGE_S], part[at.ENERGY_J]
        decodes, keys = all_decodes * share, share * routed
        tokens = seen[at.PREFILL_TOKENS] + decodes
        part[at.LAST_STAGE_S] = part[at.ENERGY_J] = part[at.SLOPE_S] = part[at.SLOPE_J] = 0.0
        add_rows(tokens, tokens, step[at.RANK_IMBALANCE], 0.0, layers, known, part)
        part[at.BASE_S], part[at.BASE_J] = part[at.LAST_STAGE_S], part[at.ENERGY_J]
        part[at.LAST_STAGE_S] += read_s
        part[at.ENERGY_J] += read_j
        if decodes > 0.0:
            seen[at.DECODES], seen[at.DECODE_KV] = decodes, step[at.DECODE_KV] * keys
            far = add_decodes(decodes, seen[at.DECODE_KV], layers, known, part)
            until = min(until, far / keys)
            if has_prompts and layers[MIXED_TABLE] > 0:
                join_attention(seen, layers, known, part)
        mine[at.LAST_STAGE_S] += weight * part[at.LAST_STAGE_S]
        mine[at.ENERGY_J] += weight * part[at.ENERGY_J]
        mine[at.SLOPE_S] += weight * keys * part[at.SLOPE_S]
        mine[at.SLOPE_J] += weight * keys * part[at.SLOPE_J]
    if step[at.LOGITS_ROWS] > 0.0:
        add_head(step[at.LOGITS_ROWS], layers, known, mine)
    mine[at.UNTIL_KV] = until if all_decodes > 0.0 else 0.0
    return add_waits(step, known, mine)
