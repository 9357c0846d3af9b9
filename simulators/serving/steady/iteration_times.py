"""Prices of the two iterations of a steady state per row: decodes alone, and with prompts.

Rows with one model on one GPU are priced together, every distinct batch once. Linear layers depend
on the batch alone and decode attention on batch and context, so rows are priced as a table with a
row per batch and a column per context. Pipelines of all lengths share the same layers. As in the
event simulation, a pipeline has two kinds of stage: the last stage, and the slowest other stage,
which is the first with most expert layers, then with most layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from simulators.catalog.accelerator import CLOSED_FORM, Changes, what_if_name
from simulators.catalog.model import LanguageModel
from simulators.composition.price import Layers, layers_of
from simulators.composition.replica import Replica
from simulators.composition.uncertainty import add_up
from simulators.core.columns import LEVELS, equal_row_groups, numbers
from simulators.core.errors import Infeasible
from simulators.core.fields import point_from
from simulators.core.jit import Floats, Ints
from simulators.serving.deployment import Deployment, deployment_of
from simulators.serving.point import DEPLOYED, ServingPoint
from simulators.serving.row_groups import rows_of
from simulators.serving.speculation import Drafter, drafter_of
from simulators.workload.llm.parallelism import Parallelism, check_layout, stage_of
from simulators.workload.llm.step import Step, decode_step
from simulators.workload.operators import Column

OWN = (
    "pp",
    "ep",
    "attention_dp",
    "moe.backend",
    "moe.redundant_experts",
    "moe.two_batch_overlap",
    "replicas",
    "without",
    "scheduling.mixed_step",
    "usd_per_gpu_hour",
)
"""Fields in which rows of a family may differ, or that only the event fidelity uses."""

SHARED = (*(name for name in DEPLOYED if name not in OWN), "speculation.acceptance")
"""Fields in which rows of a family are equal."""


@dataclass(frozen=True)
class Pipeline:
    """The rows of a family with one number of pipeline stages."""

    replica: Replica | None
    verdict: str  # reason if infeasible, else empty
    rows: Ints
    drafter: Drafter | None = None


@dataclass(frozen=True)
class ReplicaFamily:
    """Rows that differ only in pipeline stages, load and limits."""

    deployment: Deployment | None
    pipelines: tuple[Pipeline, ...]


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """The two iterations of each row: decodes only, and prompts beside decodes."""

    decodes: Floats
    keys: Floats  # keys per decode
    prompt_decodes: Floats  # decodes beside the prompts
    prompts: Floats
    prompt_tokens: Floats
    prompt_pairs: Floats
    prompt_keys: Floats
    kind: Ints  # group number; equal for equal lengths


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices per row: seconds of the slowest stage and of all stages, joules of all GPUs."""

    decode_pace_s: Floats
    decode_pass_s: Floats
    decode_j: Floats
    prompt_pace_s: Floats
    prompt_pass_s: Floats
    prompt_j: Floats
    waiting_w: Floats  # power of an idle stage
    decode_levels_s: Floats  # seconds of all stages by evidence, shape (LEVELS, rows)
    prompt_levels_s: Floats


Members = Sequence[tuple[int, Ints]]
"""Pairs of a number of stages and its rows."""


def families_of(batch: pa.RecordBatch) -> list[ReplicaFamily]:
    """Return the rows of each family."""
    stages = numbers(batch, "pp")
    return [_family(rows, stages[rows], named) for rows, named in equal_row_groups(batch, SHARED)]


def _family(rows: Ints, stages: Ints, named: Mapping[str, Any]) -> ReplicaFamily:
    members = [(int(pp), rows[stages == pp]) for pp in dict.fromkeys(stages.tolist())]
    point = point_from(ServingPoint, named)
    try:
        deployment = deployment_of(point)
    except Infeasible as verdict:
        return ReplicaFamily(None, tuple(Pipeline(None, str(verdict), rows) for _, rows in members))
    whole = deployment.hardware.replica
    if whole.accelerator:
        array = what_if_name(whole.accelerator, Changes(mapping=CLOSED_FORM))
        whole = replace(whole, accelerator=array)
    pipelines = []
    for pp, some in members:
        layout = Parallelism(tp=whole.layout.tp, pp=pp)
        try:
            check_layout(whole.model, layout)
            drafter = drafter_of(replace(point, pp=pp), deployment.hardware)
        except Infeasible as verdict:
            pipelines.append(Pipeline(None, str(verdict), some))
        else:
            pipelines.append(Pipeline(replace(whole, layout=layout), "", some, drafter))
    return ReplicaFamily(deployment, tuple(pipelines))


def empty_prices(rows: int) -> Prices:
    """Return uninitialized prices of a number of rows."""
    columns: dict[str, Any] = {f.name: np.empty(rows) for f in fields(Prices)}
    columns |= {f"{kind}_levels_s": np.zeros((len(LEVELS), rows)) for kind in ("decode", "prompt")}
    return Prices(**columns)


def write_prices(
    prices: Prices,
    replica: Replica,
    asked: Iterations,
    members: Members,
    drafter: Drafter | None = None,
) -> None:
    """Write the prices of a family's rows; the number of stages of `replica` is ignored."""
    some = rows_of(asked, np.concatenate([r for _, r in members]))
    step, shape, decode, prompt = _table(some)
    if drafter:
        step = _checked(step, drafter.drafted)
    layers = layers_of(replica, step)
    start = 0
    for pp, where in members:
        mine = slice(start, start + where.size)
        start += where.size
        columns, by_level = _stages(layers, pp, shape)
        decodes, prompts = (tuple(i[mine] for i in place) for place in (decode, prompt))
        for name, column in zip(("pace_s", "pass_s", "j"), columns, strict=True):
            getattr(prices, f"decode_{name}")[where] = column[decodes]
            getattr(prices, f"prompt_{name}")[where] = column[prompts]
        prices.waiting_w[where] = layers.waiting_w
        for level, seconds in by_level.items():
            whole = np.broadcast_to(np.asarray(seconds), shape)
            prices.decode_levels_s[level, where] = whole[decodes]
            prices.prompt_levels_s[level, where] = whole[prompts]
    if drafter and drafter.hardware:
        [(_, where)] = members  # no speculative decoding with pipelines
        _add_drafts(prices, drafter.hardware.replica, drafter, some, where)


def _checked(step: Step, drafted: int) -> Step:
    """Return a step in which each decode verifies a number of draft tokens."""
    more = drafted * step.decodes
    return replace(step, drafted=more, logits_rows=step.logits_rows + more)


def _add_drafts(
    prices: Prices, replica: Replica, drafter: Drafter, asked: Iterations, rows: Ints
) -> None:
    """Add the passes of the drafter: one per draft level for decodes, one for prompts."""
    prompts = Step(
        prefills=asked.prompts,
        prefill_tokens=asked.prompt_tokens,
        prefill_pairs=asked.prompt_pairs,
        prefill_kv_tokens=asked.prompt_keys,
        logits_rows=asked.prompts,
    )
    work = [("prompt", prompts, np.ones(asked.decodes.size))]
    for kind, decodes in (("decode", asked.decodes), ("prompt", asked.prompt_decodes)):
        present = decodes > 0.0
        single = decode_step(np.maximum(decodes, 1.0), asked.keys)
        work.append((kind, single, np.where(present, float(drafter.alone), 0.0)))
        if drafter.wide:
            more = _checked(single, drafter.width - 1)
            work.append((kind, more, np.where(present, float(drafter.wide), 0.0)))
    for kind, step, times in work:
        once = layers_of(replica, step).stage(1, 0)
        columns = {"pace_s": once.latency_s, "pass_s": once.latency_s, "j": once.energy_j}
        for name, column in columns.items():
            getattr(prices, f"{kind}_{name}")[rows] += times * column
        for level, seconds in once.seconds_by_level.items():
            getattr(prices, f"{kind}_levels_s")[level, rows] += times * seconds


Place = tuple[Ints, ...]


def _table(asked: Iterations) -> tuple[Step, tuple[int, ...], Place, Place]:
    """Return a step for all rows, its shape, and the positions of each row's two iterations."""
    rows = asked.decodes.size
    batches, batch = np.unique(asked.decodes, return_inverse=True)
    kinds, first, kind = np.unique(asked.kind, return_index=True, return_inverse=True)
    # Batches with prompts differ by number and lengths of prompts; each combination has a row.
    most = int(asked.prompts.max()) + 1
    number = kind * most + asked.prompts.astype(np.int64)
    _, alone, prompt = np.unique(number, return_index=True, return_inverse=True)
    sizes = (asked.prompts, asked.prompt_tokens)
    same = all((size[alone][prompt] == size).all() for size in sizes)
    if batches.size * kinds.size > 2 * rows or asked.prompt_decodes.any() or not same:
        places = np.arange(2 * rows)
        both = np.concatenate([asked.keys, asked.keys])
        step = _step(asked.decodes, both, asked, asked.prompt_decodes)
        return step, (2 * rows,), (places[:rows],), (places[rows:],)
    some = rows_of(asked, alone)
    step = _step(batches, asked.keys[first], some, np.zeros(alone.size), as_rows=True)
    shape = (batches.size + alone.size, kinds.size)
    return step, shape, (batch, kind), (batches.size + prompt, kind)


def _step(
    decodes: Floats, keys: Floats, prompts: Iterations, beside: Floats, as_rows: bool = False
) -> Step:
    """Return a step of decode batches, followed by batches with prompts and decodes.

    `keys` of decodes are per batch or, if each batch is a row (`as_rows`), per column.
    """
    none = np.zeros(decodes.size)

    def whole(first: Floats, then: Floats) -> Floats:
        column: Floats = np.concatenate([first, then])
        return column[:, None] if as_rows else column

    running = whole(decodes, beside)
    return Step(
        decodes=running,
        decode_kv_tokens=running * keys,
        prefills=whole(none, prompts.prompts),
        prefill_tokens=whole(none, prompts.prompt_tokens),
        prefill_pairs=whole(none, prompts.prompt_pairs),
        prefill_kv_tokens=whole(none, prompts.prompt_keys),
        logits_rows=whole(decodes, beside + prompts.prompts),
    )


def _stages(
    layers: Layers, pp: int, shape: tuple[int, ...]
) -> tuple[list[Floats], Mapping[int, Column]]:
    """Return seconds of the slowest stage and of all stages, joules; and seconds by evidence."""
    last = layers.stage(pp, pp - 1)
    pace_s = pass_s = last.latency_s
    joules, by_level = last.energy_j, last.seconds_by_level
    if pp > 1:
        sender = layers.stage(pp, slowest_sender(layers.replica.model, pp))
        pace_s = np.maximum(sender.latency_s, pace_s)
        pass_s = (pp - 1) * sender.latency_s + pass_s
        joules = (pp - 1) * sender.energy_j + joules
        by_level = add_up([(1.0, by_level), (pp - 1.0, sender.seconds_by_level)])
    columns = [np.broadcast_to(np.asarray(c), shape) for c in (pace_s, pass_s, joules)]
    return columns, by_level


def slowest_sender(model: LanguageModel, pp: int) -> int:
    """Return the index of the slowest stage before the last stage.

    >>> from simulators.catalog.model import load_model
    >>> slowest_sender(load_model("llama2_70b"), 4), slowest_sender(load_model("deepseek_v3"), 8)
    (0, 1)
    """
    layout = Parallelism(pp=pp)
    stages = [stage_of(model, layout, stage) for stage in range(pp - 1)]
    return max(range(pp - 1), key=lambda s: (stages[s].expert_layers, stages[s].layers, -s))
