"""Prices of iterations: the iteration table, extended by drafts, LoRA adapters or skipped layers.

An extension follows the replica's shape and table in the same arrays; the last two entries of
`shape` are the sizes of the replica's own.

Drafts. The extension holds the drafter's tables. Draft passes run one after another, so their times
add to the model's pass; prompts pass through the drafter once.

Adapters. Adapter products are priced by the kernel model and tabulated over tokens and requests
behind the table of the replica. Each is one more kernel: a host that launches one by one takes as
long for it as for another of the layer, and where graphs are replayed there is one more gap. A
batch waits for the adapters of its prompts that have to be loaded from the host, by the share of
requests that miss theirs.

Early exit (Schuster et al., CALM, 2022; Chen et al., EE-LLM, 2024): a decoded token stops after a
share of the layers that varies between tokens. A layer runs while any token of the batch needs it:
with `B` tokens, of which a share `s` reaches the layer, the layer runs with probability `1 - (1 -
s)^B`. Prompts pass all layers. The KV cache of skipped layers is stored all the same. Mixture of
depths (Raposo et al., 2024): every other layer processes a fixed share of all tokens. These tokens
attend to each other alone and alone write keys. Pruned prompts (Chen et al., FastV, 2024; Fu et
al., LazyLLM, 2024): after the first few layers a share of the prompt tokens is processed; later
tokens may still attend to all of them. The model is split into segments of layers that process the
same shares of tokens. The time of an iteration is the sum over layers, each priced at the expected
number of tokens.

Adaptive drafting. More running sequences make drafts dearer, because one pass verifies more rows.
The rule takes, at each number of running and waiting requests `B`, the number of draft tokens `k`
with the largest `B t(k) / T(k, B)`: tokens of an iteration over its time at the mean context. Each
answer is followed by a prompt, so an iteration prefills the prompt tokens that belong to `B t(k)`
output tokens. With chunked prefill, draft tokens use the same budget, and fewer requests run if the
budget is full. The rule is this project's own; engines disable drafts above a configured number of
requests (`speculation.disable_batch`). Prefix cache hits count as computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from simulators.composition.operator_prices import compute_rows
from simulators.composition.replica import NOTHING, Replica
from simulators.core.columns import MEASURED, shares_of
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats, Ints, Kernel, arrays, f8, i8
from simulators.serving.adapters import AdapterSet, fleet_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.limits import ROUTED_LAYERS
from simulators.serving.engine.replica import PRICE, kernel
from simulators.serving.options import ADDITIVE
from simulators.serving.point import ServingPoint
from simulators.serving.prices.hardware import Hardware
from simulators.serving.prices.iteration_table import (
    COLUMNS,
    MIXED_TABLE,
    IterationTable,
    add_decodes,
    add_head,
    add_prefills,
    add_rows,
    add_waits,
    iteration_table,
    join_attention,
    octaves,
    place,
    table_price,
)
from simulators.serving.prices.user_operator_times import load_op_table, op_price
from simulators.serving.speculation import Drafter, mean_acceptance_length
from simulators.workload.llm.parallelism import Stage, stage_of
from simulators.workload.llm.step import Shard
from simulators.workload.llm.transformer import adapter_products, token_operators

SHAPE_END, TABLE_END = -2, -1
"""Last entries of an extended `shape`: the sizes of the replica's own shape and table."""

ALONE, WIDE, WIDTH = -5, -4, -3
"""Entries of `shape`: passes that draft one token per sequence, passes that draft several, and how
many these draft. The drafter's shape and table follow the replica's."""


def extended(table: IterationTable, entries: Sequence[int], added: Floats) -> IterationTable:
    """Return a table extended by numbers, and its shape by `entries` and the original sizes."""
    ends = np.array([*entries, table.shape.size, table.table.size], np.int64)
    shape, numbers = np.concatenate([table.shape, ends]), np.concatenate([table.table, added])
    return replace(table, shape=shape, table=numbers)


def with_drafts(table: IterationTable, drafter: Drafter, *, additive: bool) -> IterationTable:
    """Return the table of a replica, extended by the tables of its drafter."""
    if drafter.hardware is None:
        return extended(table, [0, 0, drafter.width], np.zeros(0))
    drafts = iteration_table(drafter.hardware, additive=additive)
    entries = [*drafts.shape.tolist(), drafter.alone, drafter.wide, drafter.width]
    return extended(table, entries, drafts.table)


@kernel(PRICE)
def drafted_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage: verification, prompts and draft passes."""
    shapes, numbers = shape[SHAPE_END], shape[TABLE_END]
    alone, wide = shape[ALONE], shape[WIDE]
    mine, draft = price[: at.PRICE_COLUMNS], price[at.PRICE_COLUMNS :]
    table_price(step, shape[:shapes], table[:numbers], mine)
    if alone + wide > 0:
        theirs, behind = shape[shapes:], table[numbers:]
        if step[at.DECODES] > 0.0:
            each = (step[at.TOKENS] - step[at.PREFILL_TOKENS]) / step[at.DECODES]
            most = int(each - 0.5)  # draft passes of this batch, which may have none
            alone = min(alone, most)
            wide = min(wide, most - alone)
            if alone > 0:
                add_drafts(step, theirs, behind, mine, draft, alone, 1.0)
            if wide > 0:
                add_drafts(step, theirs, behind, mine, draft, wide, float(shape[WIDTH]))
        if step[at.PREFILLS] > 0.0:
            add_prompts(step, theirs, behind, mine, draft)
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 3), i8, f8))
def add_drafts(
    step: Floats,
    shape: Ints,
    table: Floats,
    price: Floats,
    draft: Floats,
    passes: int,
    width: float,
) -> float:
    """Add draft passes of `width` tokens per sequence to the price; return their seconds."""
    tokens, everywhere, rows = step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS]
    prefills = step[at.PREFILLS]
    decodes = step[at.DECODES]
    step[at.TOKENS] = step[at.LOGITS_ROWS] = width * decodes
    step[at.ALL_RANK_TOKENS] = everywhere * width * decodes / tokens
    step[at.PREFILLS] = 0.0
    table_price(step, shape, table, draft)
    step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS] = tokens, everywhere, rows
    step[at.PREFILLS] = prefills
    return add_pass(price, draft, step[at.DECODE_KV], passes)


@kernel(f8(*arrays(f8, 1), *arrays(i8, 1), *arrays(f8, 3)))
def add_prompts(step: Floats, shape: Ints, table: Floats, price: Floats, draft: Floats) -> float:
    """Add the drafter's prefill to the price; return its seconds."""
    tokens, everywhere, rows = step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS]
    decodes = step[at.DECODES]
    step[at.TOKENS] = step[at.PREFILL_TOKENS]
    step[at.ALL_RANK_TOKENS] = everywhere * step[at.PREFILL_TOKENS] / tokens
    step[at.LOGITS_ROWS] = min(rows, step[at.PREFILLS])
    step[at.DECODES] = 0.0
    table_price(step, shape, table, draft)
    step[at.TOKENS], step[at.ALL_RANK_TOKENS], step[at.LOGITS_ROWS] = tokens, everywhere, rows
    step[at.DECODES] = decodes
    return add_pass(price, draft, 0.0, 1)


@kernel(f8(*arrays(f8, 2), f8, i8))
def add_pass(price: Floats, draft: Floats, keys: float, times: int) -> float:
    """Add passes of the drafter to the price of an iteration; return their seconds.

    The energy of the iteration counts these seconds as idle, so idle energy is subtracted. A pass
    takes at least the time of its launches, `MIN_S`: its time is constant in the keys until the
    kernels take longer, then linear.
    """
    base, slope, least_s = draft[at.BASE_S], draft[at.SLOPE_S], draft[at.MIN_S]
    turn = inf if base <= least_s else -inf
    if slope != 0.0:
        turn = (least_s - base) / slope
    is_launched = (keys < turn) == (slope >= 0.0)
    fixed, growing = (least_s, 0.0) if is_launched else (base, slope)
    waits_s = fixed + draft[at.ADDED_S] - base
    joules = draft[at.BASE_J] + draft[at.WAITING_W] * waits_s
    joules_slope = draft[at.SLOPE_J] + draft[at.WAITING_W] * (growing - slope)
    seconds = times * (fixed + draft[at.ADDED_S])
    price[at.ADDED_S] += seconds
    price[at.DRAFTS_SLOPE_S] += times * growing
    price[at.BASE_J] += times * joules - price[at.WAITING_W] * seconds
    price[at.SLOPE_J] += times * joules_slope
    until = min(draft[at.UNTIL_KV], turn if keys < turn else inf)
    price[at.UNTIL_KV] = min(price[at.UNTIL_KV], until)
    seconds += times * growing * keys
    price[at.LAST_STAGE_S] += seconds
    price[at.ENERGY_J] += times * draft[at.ENERGY_J]
    return seconds  # type: ignore[no-any-return]


ADAPTER_STEPS, MOST_TOKENS, MOST_REQUESTS = 2, 1 << 17, 1 << 12

TOKEN_NODES, REQUEST_NODES = -4, -3
"""Entries of `shape`: the sides of the table of adapters, which follows the replica's table."""

LAUNCHING, GAPS, LOAD_S, HEADER = 0, 2, 4, 5
"""First entries of the table: seconds of launches and of gaps, each on a sending stage and on the
last, and seconds to load the adapter of a prompt. Then, by phase, tokens and requests: seconds on
both kinds of stage, joules of the replica."""


@functools.lru_cache(maxsize=64)
def adapter_table(hardware: Hardware, fleet: AdapterSet) -> tuple[tuple[int, int], Floats]:
    """Return the numbers of token and request nodes of the table of adapters, and its numbers."""
    replica = hardware.replica
    tokens, requests = (octaves(ADAPTER_STEPS, most)[1:] for most in (MOST_TOKENS, MOST_REQUESTS))
    stages = [stage_of(replica.model, replica.layout, i) for i in (0, replica.layout.pp - 1)]
    header = np.zeros(HEADER)
    for i, part in enumerate(stages):
        header[LAUNCHING + i], header[GAPS + i] = _waits_s(replica, fleet, part)
    header[LOAD_S] = fleet.missing * fleet.load_s
    grid = np.broadcast_arrays(tokens[:, None], requests[None, :])
    shared = np.minimum(fleet.distinct_in(requests)[None, :], grid[0])
    mixed = _cells(replica, fleet, stages, grid[0], shared).ravel()
    decodes = mixed
    if fleet.by_token:
        decodes = _cells(replica, fleet, stages, grid[0], grid[0]).ravel()
    numbers = np.concatenate([header, decodes, mixed])
    return (tokens.size, requests.size), numbers


def _cells(
    replica: Replica, fleet: AdapterSet, stages: list[Stage], tokens: Floats, groups: Floats
) -> Floats:
    """Return seconds on both kinds of stage and joules of the replica of adapter products.

    `groups` are the distinct adapters of each batch. The last axis of the result has `COLUMNS`.
    """
    seconds, joules = [], []
    for part in dict.fromkeys(stages):
        shard = Shard(replica.model, replica.layout, part, replica.dtype)
        products = adapter_products(
            shard, float(fleet.rank), fleet.targets, tokens, groups, fused=not fleet.by_token
        )
        rows = compute_rows(products, replica, "tokens")
        seconds.append(np.stack([row.seconds for row in rows]).sum(axis=0) / replica.time_share)
        joules.append(replica.layout.width * np.stack([row.joules for row in rows]).sum(axis=0))
    senders = replica.layout.pp - 1
    whole_j = senders * joules[0] + joules[-1]
    return np.stack([seconds[0], seconds[-1], whole_j], axis=-1)


def products_of(
    replica: Replica, fleet: AdapterSet, tokens: float, requests: float, *, prompts: bool
) -> tuple[float, float]:
    """Return seconds on all stages and joules of the adapter products of one batch."""
    rows = np.array([max(tokens, 1.0)])
    groups = np.minimum(fleet.distinct_in(np.array([max(requests, 1.0)])), rows)
    if fleet.by_token and not prompts:
        groups = rows
    stages = [stage_of(replica.model, replica.layout, i) for i in (0, replica.layout.pp - 1)]
    sender, last, joules = _cells(replica, fleet, stages, rows, groups)[0].tolist()
    return (replica.layout.pp - 1) * sender + last, joules


def _waits_s(replica: Replica, fleet: AdapterSet, part: Stage) -> tuple[float, float]:
    """Return the seconds of host launches and of gaps that adapter kernels add to a stage."""
    shard = Shard(replica.model, replica.layout, part, replica.dtype)
    layer = replace(part, has_embedding=False, has_head=False)
    one: Any = np.ones(())
    usual = sum(o.repeat for o in token_operators(replace(shard, part=layer), one))
    products = adapter_products(shard, 1.0, fleet.targets, one, one, fused=not fleet.by_token)
    more = sum(product.repeat for product in products)
    launching = replica.runtime.launch_s(part.layers, 0.0, one * 0.0, replica.cluster)
    hidden = replica.runtime.launch_s(part.layers, 0.0, one * 60.0, replica.cluster)
    gaps_s = part.layers * replica.runtime.layer_s * replica.effects.launch
    return float(launching - hidden) * more / usual, gaps_s * more / usual


@kernel(PRICE)
def adapted_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage of a batch with LoRA adapters.

    In a batch with prompts, all tokens use the kernels that are grouped by adapter.
    """
    ends, numbers = shape.size + SHAPE_END, shape[TABLE_END]
    table_price(step, shape[:ends], table[:numbers], price)
    rows, columns = shape[TOKEN_NODES], shape[REQUEST_NODES]
    first = numbers + HEADER
    if step[at.PREFILLS] > 0.0:
        first += COLUMNS * rows * columns
    x = place(max(step[at.TOKENS], 1.0), ADAPTER_STEPS, rows + 1) - 1.0
    y = place(max(step[at.PREFILLS] + step[at.DECODES], 1.0), ADAPTER_STEPS, columns + 1) - 1.0
    i, j = min(int(x), rows - 2), min(int(y), columns - 2)
    u, v = x - i, y - j
    low = first + COLUMNS * (i * columns + j)
    waits_s, added_j = 0.0, 0.0
    completed_prompts = step[at.LOGITS_ROWS] - step[at.DECODES]
    loads_s = table[numbers + LOAD_S] * completed_prompts
    for column in range(COLUMNS):
        left = table[low + column] * (1.0 - v) + table[low + COLUMNS + column] * v
        far = low + COLUMNS * columns
        right = table[far + column] * (1.0 - v) + table[far + COLUMNS + column] * v
        more = left * (1.0 - u) + right * u
        if column == COLUMNS - 1:
            added_j = more
            break
        price[at.STAGE_BASE_S + column] += more
        price[at.STAGE_MIN_S + column] += table[numbers + LAUNCHING + column]
        price[at.STAGE_ADDED_S + column] += table[numbers + GAPS + column] + loads_s
        busy_s = price[at.STAGE_BASE_S + column]
        busy_s += price[at.STAGE_SLOPE_S + column] * step[at.DECODE_KV]
        before = price[column]
        price[column] = max(price[at.STAGE_MIN_S + column], busy_s)
        price[column] += price[at.STAGE_ADDED_S + column]
        if column == at.LAST_STAGE_S:
            waits_s = price[column] - before - more
    price[at.BASE_J] += added_j
    price[at.ENERGY_J] += added_j + price[at.WAITING_W] * waits_s
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


SLICES, EXIT_SAMPLES = 8, 512
"""Slices of the depth for a distribution of exit depths, each at its mean share of tokens, and
quantiles of that distribution. Both are choices, because pricing time grows with the slices: twice
as many change a decode of Llama-3.1-8B by 0.3 % in a batch of 8 and by 1.3 % in a batch of 256."""

INTEGRATION_STEPS = 4096
"""Steps in which the distribution of exit depths is integrated."""

LAYERS, DECODED, PROMPTS, ROUTED, SEGMENT_COLUMNS = 0, 1, 2, 3, 4
"""Columns of a segment: its share of the layers, and the shares of decoded tokens, of prompt tokens
and of all tokens (and therefore of their keys) that its layers process."""

SEGMENTS = -3
"""Entry of `shape`: the number of segments, whose rows follow the replica's table."""


def skips_layers(point: ServingPoint) -> bool:
    """Return whether some tokens skip some layers."""
    how = point.dynamic
    return min(how.exit_depth, how.mod_capacity, how.prune_keep_ratio) < 1.0


def segments_of(point: ServingPoint, layers: int) -> Floats:
    """Return the segments of a model's layers, an array of shape (segments, SEGMENT_COLUMNS).

    Raises:
        Infeasible: no distribution of exit depths has this standard deviation.
    """
    how, depth = point.dynamic, point.dynamic.exit_depth
    exits = ends = np.full(1, depth)
    if how.exit_depth_std:
        exits = beta_quantiles(depth, how.exit_depth_std, EXIT_SAMPLES)
        found = exits.mean()  # deviates slightly if most tokens leave at one of the ends
        low, high = depth / found, (1.0 - depth) / (1.0 - found)
        exits = low * exits if low < 1.0 else 1.0 - high * (1.0 - exits)
        ends = np.arange(1, SLICES) / SLICES
    pruned = min(1.0, how.prune_after_layer / layers) if how.prune_keep_ratio < 1.0 else 1.0
    ends = np.unique([*ends, pruned, 1.0])
    begins = np.concatenate([[0.0], ends[:-1]])
    deep = (exits - begins[:, None]) / np.maximum(ends - begins, 1e-12)[:, None]
    running = np.clip(deep, 0.0, 1.0).mean(axis=1)
    kept = np.where(begins >= pruned, how.prune_keep_ratio, 1.0)
    whole = np.stack([ends - begins, running, kept, np.ones(ends.size)], axis=1)
    if how.mod_capacity == 1.0:
        return whole[whole[:, LAYERS] > 0.0]
    whole[:, LAYERS] *= 1.0 - ROUTED_LAYERS
    routed = whole * [ROUTED_LAYERS / (1.0 - ROUTED_LAYERS), 1.0, 1.0, how.mod_capacity]
    both = np.concatenate([whole, routed])
    return both[both[:, LAYERS] > 0.0]


def beta_quantiles(mean: float, deviation: float, count: int) -> Floats:
    """Return `count` quantiles of a beta distribution, at the centres of equal probabilities.

    Raises:
        Infeasible: no distribution on (0, 1) has this standard deviation.
    """
    concentration = mean * (1.0 - mean) / deviation**2 - 1.0
    if concentration <= 0.0:
        raise Infeasible("exit_spread_too_wide", f"{deviation:g} around {mean:g}")
    values = (np.arange(INTEGRATION_STEPS) + 0.5) / INTEGRATION_STEPS
    a, b = mean * concentration - 1.0, (1.0 - mean) * concentration - 1.0
    logs = a * np.log(values) + b * np.log1p(-values)
    share = np.cumsum(np.exp(logs - logs.max()))
    found: Floats = np.interp((np.arange(count) + 0.5) / count, share / share[-1], values)
    return found


def _check_skipped_layers(point: ServingPoint) -> None:
    drafts = point.speculation.method != NOTHING and point.speculation.num_draft_tokens > 0
    for name, wrong in (
        ("pp_1", point.pp > 1),
        ("attention_dp_1", point.attention_dp > 1),
        ("no_drafts", drafts),
        ("no_adapters", point.lora.adapters > 0),
        ("composition", bool(point.iteration_table)),
        ("one_pass", point.scheduling.mixed_step == ADDITIVE),
    ):
        if wrong:
            raise Infeasible(f"skipped_layers_need_{name}")


@kernel(PRICE)
def skipping_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of a batch whose tokens skip layers.

    A layer processes the expected number of decodes that reach the layer, given that at least one
    does; in a batch with prompts, which pass all layers, the unconditional expectation. LM head and
    host process all tokens. `price` has space for another price and step.
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
        row = numbers + SEGMENT_COLUMNS * segment
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


def prices_of(
    point: ServingPoint, hardware: Hardware, drafter: Drafter | None = None
) -> tuple[IterationTable, Kernel[..., float]]:
    """Return the price tables of a point and its drafter, and the kernel that reads them.

    Raises:
        Infeasible: a combination of options is not modelled.
    """
    if point.iteration_table and not point.lora.adapters and not skips_layers(point):
        layers = hardware.replica.model.layers // point.pp
        known = load_op_table(point.iteration_table, layers=layers, tp=point.tp)
        measured = shares_of(MEASURED).reshape(-1)
        table = IterationTable(known.shape, known.table, None, shares=measured, reach={})
        return table, op_price
    additive = point.scheduling.mixed_step == ADDITIVE
    found = iteration_table(hardware, additive=additive)
    if skips_layers(point):
        _check_skipped_layers(point)
        segments = segments_of(point, hardware.replica.model.layers)
        return extended(found, [len(segments)], segments.ravel()), skipping_price
    if fleet := fleet_of(point, hardware):
        return extended(found, *adapter_table(hardware, fleet)), adapted_price
    if drafter is None:
        return found, table_price
    return with_drafts(found, drafter, additive=additive), drafted_price


BATCHES_PER_OCTAVE = 4


@dataclass(frozen=True, kw_only=True)
class MeanLoad:
    """Mean request lengths and limits of a replica."""

    context: float  # keys of a decode
    prompt_tokens: float  # prefilled by this replica; 0: by separate prefill replicas
    output_tokens: float
    max_batch: int  # most decodes per iteration
    budget: float = inf  # tokens of an iteration; infinite: no chunked prefill


def worth_drafting(
    survival: tuple[float, ...], table: IterationTable, price: Kernel[..., float], load: MeanLoad
) -> tuple[int, ...]:
    """Return the largest numbers of requests for which drafting at least 1, 2 ... tokens pays off.

    `survival` holds the probabilities that at least 1, 2 ... draft tokens are accepted.
    """
    batches = octaves(BATCHES_PER_OCTAVE, max(1, load.max_batch))[1:]
    best = []
    for batch in batches.tolist():
        ks = range(len(survival) + 1)
        each = [mean_acceptance_length(survival[:k]) for k in ks]
        best.append(int(np.argmax([_rate(table, price, load, batch, k, each[k]) for k in ks])))
    least = np.minimum.accumulate(best)  # an increase with the batch is noise of kernel times
    ends = np.append(batches[1:] - 1.0, np.inf)
    found = (np.max(ends[least >= k], initial=0.0) for k in range(1, len(survival) + 1))
    return tuple(int(min(end, at.ALL_DECODES)) for end in found)


def _rate(
    table: IterationTable,
    price: Kernel[..., float],
    load: MeanLoad,
    requests: float,
    drafts: int,
    tokens: float,
) -> float:
    """Return the tokens per second of `requests` requests with acceptance length `tokens`."""
    needed = load.output_tokens / tokens
    whole = load.prompt_tokens + (1 + drafts) * needed  # tokens of the budget per request
    decodes = min(requests, load.budget * needed / whole)
    made = decodes * tokens
    decodes_s = drafted_s(table, price, decodes, drafts, load.context)
    read = made * load.prompt_tokens / load.output_tokens
    if read == 0.0:
        return made / decodes_s
    free_tokens = load.budget - (1 + drafts) * decodes
    chunk = min(free_tokens, max(load.prompt_tokens, read))
    share = read / chunk  # share of the iterations with prompts
    beside = decodes if load.budget < inf else 0.0
    prompts = (load.prompt_tokens, chunk)
    with_s = drafted_s(table, price, beside, drafts, load.context, prompts)
    return made / (with_s * share + decodes_s * (1.0 - share if beside else 1.0))


def drafted_s(
    table: IterationTable,
    price: Kernel[..., float],
    decodes: float,
    drafts: int,
    context: float,
    prompts: tuple[float, float] = (1.0, 0.0),
) -> float:
    """Return the seconds of an iteration of decodes with `drafts` draft tokens each.

    `prompts` holds the length of a prompt and the prompt tokens of the iteration.
    """
    length, read = prompts
    step: Floats = np.zeros(at.STEP_COLUMNS)
    step[at.DECODES], step[at.DECODE_KV] = decodes, decodes * context
    step[at.TOKENS] = step[at.ALL_RANK_TOKENS] = decodes * (1 + drafts) + read
    step[at.LOGITS_ROWS] = decodes * (1 + drafts)
    if read:
        step[at.PREFILLS] = count = max(1.0, read / length)
        step[at.LOGITS_ROWS] += count
        step[at.PREFILL_TOKENS], step[at.PREFILL_PAIRS] = read, read * (length + 1.0) / 2.0
        step[at.PREFILL_KV] = count * (length + read / count) / 2.0
    return float(price(step, table.shape, table.table, np.zeros(2 * at.PRICE_COLUMNS)))
