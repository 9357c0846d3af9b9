"""Cost of LoRA adapters in an iteration: products, launches, and loads from the host.

Products are those of the kernel model, tabulated over tokens and requests behind the table of the
replica. Each is one more kernel: a host that launches one by one takes as long for it as for
another of the layer, and where graphs are replayed there is one more gap. A batch waits for the
adapters of its prompts that have to be loaded, by the share of requests that miss theirs.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np

from simulators.composition.operator_prices import compute_rows
from simulators.composition.replica import Replica
from simulators.core.jit import Floats, Ints
from simulators.serving.adapters.fleet import AdapterSet
from simulators.serving.deployment import Hardware
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel
from simulators.serving.prices.iteration_table import IterationTable, octaves
from simulators.serving.prices.lookup import place, table_price
from simulators.workload.llm.adapters import adapter_products
from simulators.workload.llm.parallelism import Stage, stage_of
from simulators.workload.llm.shard import Shard
from simulators.workload.llm.transformer import token_operators

STEPS, MOST_TOKENS, MOST_REQUESTS = 2, 1 << 17, 1 << 12

SHAPE_END, TABLE_END, TOKEN_NODES, REQUEST_NODES = -4, -3, -2, -1
"""Entries of `shape`, from its end: where the table of adapters begins, and its sides."""

LAUNCHING, GAPS, LOAD_S, HEADER = 0, 2, 4, 5
"""The first entries of the table: seconds of launches and of gaps on a stage that sends on and on
the last, and of the load for a prompt. Then by phase, tokens and requests: seconds on both stages,
joules of the replica."""

COLUMNS = 3


def with_adapters(
    table: IterationTable, hardware: Hardware, fleet: AdapterSet
) -> tuple[Ints, Floats]:
    """Return shape and table of a replica and of its adapters."""
    sides, added = _added(hardware, fleet)
    ends = np.array([table.shape.size, table.table.size, *sides], np.int64)
    return np.concatenate([table.shape, ends]), np.concatenate([table.table, added])


@functools.lru_cache(maxsize=64)
def _added(hardware: Hardware, fleet: AdapterSet) -> tuple[tuple[int, int], Floats]:
    """Return the sides of the table of adapters, and its numbers."""
    replica = hardware.replica
    tokens, requests = (octaves(STEPS, most)[1:] for most in (MOST_TOKENS, MOST_REQUESTS))
    stages = [stage_of(replica.model, replica.cut, i) for i in (0, replica.cut.pp - 1)]
    header = np.zeros(HEADER)
    for i, part in enumerate(stages):
        header[LAUNCHING + i], header[GAPS + i] = _waits_s(replica, fleet, part)
    header[LOAD_S] = fleet.missing * fleet.load_s
    grid = np.broadcast_arrays(tokens[:, None], requests[None, :])
    shared = np.minimum(fleet.wanted(requests)[None, :], grid[0])
    mixed = _cells(replica, fleet, stages, grid[0], shared).ravel()
    decodes = mixed
    if fleet.by_token:
        decodes = _cells(replica, fleet, stages, grid[0], grid[0]).ravel()
    numbers = np.concatenate([header, decodes, mixed])
    return (tokens.size, requests.size), numbers


def _cells(
    replica: Replica, fleet: AdapterSet, stages: list[Stage], tokens: Floats, groups: Floats
) -> Floats:
    """Return seconds on a stage of either kind, and joules of all, of the adapters' products."""
    seconds, joules = [], []
    for part in dict.fromkeys(stages):
        shard = Shard(replica.model, replica.cut, part, replica.dtype)
        products = adapter_products(
            shard, float(fleet.rank), fleet.targets, tokens, groups, fused=not fleet.by_token
        )
        rows = compute_rows(products, replica, "tokens")
        seconds.append(np.stack([row.seconds for row in rows]).sum(axis=0) / replica.time_share)
        joules.append(replica.cut.width * np.stack([row.joules for row in rows]).sum(axis=0))
    senders = replica.cut.pp - 1
    whole_j = senders * joules[0] + joules[-1]
    return np.stack([seconds[0], seconds[-1], whole_j], axis=-1)


def products_of(
    replica: Replica, fleet: AdapterSet, tokens: float, requests: float, *, prompts: bool
) -> tuple[float, float]:
    """Return seconds on all stages, and joules, of the products for one batch."""
    seen, wanting = np.array([max(tokens, 1.0)]), np.array([max(requests, 1.0)])
    groups = np.minimum(fleet.wanted(wanting), seen)
    if fleet.by_token and not prompts:
        groups = seen
    stages = [stage_of(replica.model, replica.cut, i) for i in (0, replica.cut.pp - 1)]
    sender, last, joules = _cells(replica, fleet, stages, seen, groups)[0].tolist()
    return (replica.cut.pp - 1) * sender + last, joules


def _waits_s(replica: Replica, fleet: AdapterSet, part: Stage) -> tuple[float, float]:
    """Return the seconds that adapter kernels add to a stage: host launches, and gaps."""
    shard = Shard(replica.model, replica.cut, part, replica.dtype)
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
    """Return the seconds of the last stage of a batch whose requests have adapters.

    Where a batch has prompts all its tokens are multiplied adapter by adapter.
    """
    ends, numbers = shape.size + SHAPE_END, shape[TABLE_END]
    table_price(step, shape[:ends], table[:numbers], price)
    rows, columns = shape[TOKEN_NODES], shape[REQUEST_NODES]
    first = numbers + HEADER
    if step[at.PREFILLS] > 0.0:
        first += COLUMNS * rows * columns
    x = place(max(step[at.TOKENS], 1.0), STEPS) - 1.0
    y = place(max(step[at.PREFILLS] + step[at.DECODES], 1.0), STEPS) - 1.0
    i, j = min(int(x), rows - 2), min(int(y), columns - 2)
    u, v = x - i, y - j
    low = first + COLUMNS * (i * columns + j)
    waits_s, added_j = 0.0, 0.0
    answered = step[at.LOGITS_ROWS] - step[at.DECODES]  # prompts that end, each of them once
    loads_s = table[numbers + LOAD_S] * answered
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
