"""Tables of all requests and batches of a run, and the breakdown of the mean request by operator.

The breakdown has three spans: queue, prefill and decode. They equal the means of the run. Prefill
and decode time and energy are divided among operators as in one mean batch: the mean batch with
prompts, and the mean batch that a decode shares. A request waits for its whole batch, so batch
times count as request times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from simulators.composition.explain import explained
from simulators.composition.replica import Replica
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible
from simulators.core.jit import Floats
from simulators.serving.adapters import AdapterSet, fleet_of
from simulators.serving.answer.summary import ServingRun
from simulators.serving.deployment import pools_of
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import LOG_COLUMNS, ReplicaState
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import products_of
from simulators.serving.speculation import Drafter, drafter_of
from simulators.workload.llm.step import Step, decode_step

TIMES = {
    "first_scheduled_s": at.SCHEDULED,
    "first_token_s": at.FIRST_TOKEN,
    "completed_s": at.COMPLETED,
    "stalled_s": at.STALLED,
    "longest_gap_s": at.LONGEST_GAP,
}
COUNTS = {
    "replica": at.REPLICA,
    "preemptions_recompute": at.NUM_RECOMPUTES,
    "cached_tokens": at.NUM_CACHED,
}


def request_table(state: ReplicaState) -> pa.Table:
    """Return one row per admitted request, in order of arrival.

    Times of events that did not occur are null. `total_tokens` counts prompt and output; preemption
    by recomputation does not change it.
    """
    total = state.request[:, at.PROMPT] + state.request[:, at.OUTPUT]
    arrival_s = state.times[:, at.ARRIVAL]
    columns = {"arrival_s": pa.array(arrival_s)} | {
        name: pa.array(state.times[:, column], mask=state.times[:, column] < 0.0)
        for name, column in TIMES.items()
    }
    counts = {name: state.request[:, column] for name, column in COUNTS.items()}
    return pa.table({**columns, **counts, "total_tokens": total})


def batch_table(state: ReplicaState) -> pa.Table:
    """Return one row per logged batch, in order of formation."""
    rows = state.log[: int(state.clock[at.LOG_ROWS])]
    whole = [name for name in LOG_COLUMNS if not name.endswith("_s")]
    columns = {name: rows[:, i] for i, name in enumerate(LOG_COLUMNS)}
    return pa.table({n: c.astype(np.int64) if n in whole else c for n, c in columns.items()})


ENGINE, QUEUE, PROMPT, MOVE, LATER = "engine", "queue", "prefill", "KV transfer", "decode"
SHOWN_OPTIONS = {
    "scheduler": "scheduler",
    "runtime": "runtime",
    "dtype": "dtype",
    "chunk_size": "token_budget",
    "max_batch": "max_num_seqs",
    "memory_fraction": "gpu_memory_utilization",
    "cache.block_size": "block_size",
    "cache.prefix_caching": "is_prefix_caching",
}
"""Options of an engine that `explain` shows, and the attributes of a point that hold them."""


def explained_request(run: ServingRun) -> list[Contribution]:
    """Return the time and energy breakdown of the mean completed request of a logged run.

    Times add up to `e2e_mean_s`, energies to `energy_j_per_token` times the mean output;
    `memory_bytes` is what one GPU keeps.
    """
    metrics, pools = run.metrics(), run.deployment.pools or (run.deployment,)
    hardware = {PROMPT: pools[0].hardware, LATER: pools[-1].hardware}
    queue_s, ttft_s, e2e_s = metrics.queue_mean_s, metrics.ttft_mean_s, metrics.e2e_mean_s
    if queue_s is None or ttft_s is None or e2e_s is None:
        raise Infeasible("no_request_is_answered", "no request completed")
    points = dict(zip(hardware, (pools_of(run.point)[0], pools_of(run.point)[-1]), strict=True))
    drafters = {phase: drafter_of(points[phase], one) for phase, one in hardware.items()}
    fleets = {phase: fleet_of(points[phase], one) for phase, one in hardware.items()}
    steps, passes = _steps_and_passes(run.state)
    moves_s = {
        "wait for KV blocks": metrics.kv_wait_mean_s,
        "KV transfer": metrics.kv_transfer_mean_s,
    }
    moved_s = sum(seconds or 0.0 for seconds in moves_s.values())
    spans = {PROMPT: ttft_s - queue_s - moved_s, LATER: e2e_s - ttft_s}
    rows = [Contribution(phase=QUEUE, name="waiting", time_s=queue_s, bound="load")]
    rows += [
        Contribution(phase=MOVE, name=name, time_s=seconds, bound="network")
        for name, seconds in moves_s.items()
        if seconds is not None
    ]
    parts = [
        row
        for phase, seconds in spans.items()
        if phase in steps
        for row in _rows_of_batch(
            hardware[phase].replica, steps[phase], phase, seconds, drafters[phase], fleets[phase]
        )
    ]
    parts = [replace(r, count=r.count * passes[r.phase.split(",")[0]]) for r in parts]
    per_token_j, whole_j = metrics.energy_j_per_token, sum(row.energy_j for row in parts)
    request_j = 0.0
    if per_token_j and metrics.requests_per_s and metrics.tokens_per_s:
        request_j = per_token_j * metrics.tokens_per_s / metrics.requests_per_s
    scale = request_j / whole_j if whole_j else 0.0
    parts = [replace(row, energy_j=row.energy_j * scale) for row in parts]
    return [*_engine_rows(points), *rows, *parts]


def _engine_rows(points: Mapping[str, ServingPoint]) -> list[Contribution]:
    """Return the options of the engine, with the defaults of those that the design leaves open."""
    pools = {"": points[PROMPT]}
    if points[PROMPT] is not points[LATER]:
        pools = {f"{phase} ": point for phase, point in points.items()}
    shown = {
        f"{pool}{name}": str(getattr(point, attribute))
        for pool, point in pools.items()
        for name, attribute in SHOWN_OPTIONS.items()
    }
    return [Contribution(phase=ENGINE, name=name, note=value) for name, value in shown.items()]


def _steps_and_passes(state: ReplicaState) -> tuple[dict[str, Step], dict[str, float]]:
    """Return the mean batch and the passes of a request, by phase.

    The mean is of batches with prompts, and of batches weighted by their decodes. The context of a
    decode is the mean over all output tokens of all requests. Of synchronous ranks the one with
    most tokens counts, for all of them, as in the price of their iteration.
    """
    log = batch_table(state)
    names = ("replica", "formed_s", "requests", "prompt_tokens", "tokens", "drafted")
    replica, formed_s, requests, prompts, tokens, drafted = (
        log[name].to_numpy().astype(float) for name in names
    )
    decodes = (tokens - prompts) / (1.0 + drafted)
    prefills = requests - decodes
    completed = max(1, int((state.times[:, at.COMPLETED] >= 0.0).sum()))
    passes = {PROMPT: prefills.sum() / completed, LATER: decodes.sum() / completed}
    if (state.own[:, at.RANKS] > 1).any():
        first = int(state.limits[at.PREFILL_REPLICAS])
        begin = np.where((first > 0) & (replica >= first), first, 0)
        ranks = state.own[(begin > 0).astype(int), at.RANKS]
        iteration = np.stack([begin + (replica - begin) // ranks, formed_s])
        order = np.lexsort([prompts + decodes * (1.0 + drafted), *iteration])
        busiest = order[np.diff(iteration[:, order], append=np.nan).any(axis=0)]
        prefills, prompts, decodes = ((ranks * of)[busiest] for of in (prefills, prompts, decodes))
        drafted = drafted[busiest]
    asked, answered = state.request[:, [at.PROMPT, at.OUTPUT]].T.astype(float)
    context = float(answered @ (asked + answered / 2.0)) / max(float(answered.sum()), 1.0)
    past = float(state.request[:, at.NUM_CACHED].mean())
    sums = {
        "prefills": prefills,
        "prefill_tokens": prompts,
        "decodes": decodes,
        "drafted": drafted * decodes,
        "decode_kv_tokens": decodes * context,
    }
    weights = {PROMPT: (prompts > 0).astype(float), LATER: decodes}
    steps = {phase: _mean_step(sums, of, past) for phase, of in weights.items() if of.any()}
    return steps, passes


def _mean_step(sums: Mapping[str, Floats], weights: Floats, past: float) -> Step:
    """Return the weighted mean of batches; `past` tokens of each prompt were prefix cache hits."""
    mean = {name: float(np.average(column, weights=weights)) for name, column in sums.items()}
    prompt_tokens = mean["prefill_tokens"]
    chunk = prompt_tokens / max(mean["prefills"], 1e-9)
    return Step(
        **mean,
        prefill_pairs=prompt_tokens * ((chunk + 1.0) / 2.0 + past),
        prefill_kv_tokens=prompt_tokens + mean["prefills"] * past,
        logits_rows=mean["decodes"] + mean["drafted"] + mean["prefills"],
    )


def _rows_of_batch(
    replica: Replica,
    step: Step,
    phase: str,
    seconds: float,
    drafter: Drafter | None,
    fleet: AdapterSet | None,
) -> list[Contribution]:
    """Return the rows of one batch, scaled so that their times add up to `seconds`."""
    rows = [row for row in explained(replica, step, phase, 0.0) if row.phase.startswith(phase)]
    if drafter and drafter.hardware:
        decodes = max(float(step.decodes), 1e-9)
        once = decode_step(step.decodes, step.decode_kv_tokens / decodes)
        once = replace(once, drafted=(drafter.width - 1) * step.decodes)
        most = drafter.alone + drafter.wide
        passes = most * float(step.drafted) / (drafter.drafted * decodes)
        rows += [
            replace(_scaled_row(row, passes), name=f"drafts: {row.name}", count=passes * row.count)
            for row in explained(drafter.hardware.replica, once, phase, 0.0)
            if row.phase.startswith(phase) and row.time_s
        ]
    if fleet:
        tokens, requests = float(step.tokens), float(step.prefills + step.decodes)
        prompts = phase == PROMPT
        time_s, joules = products_of(replica, fleet, tokens, requests, prompts=prompts)
        note = "adapter products; their launches are included in other rows"
        rows.append(
            Contribution(
                phase=phase,
                name="adapters",
                time_s=time_s,
                energy_j=joules,
                memory_bytes=fleet.bytes_per_gpu,
                note=note,
            )
        )
    whole = sum(row.time_s for row in rows)
    scale = seconds / whole if whole else 0.0
    return [_scaled_row(row, scale) for row in rows]


def _scaled_row(row: Contribution, scale: float) -> Contribution:
    names = ("time_s", "energy_j", "flops", "moved_bytes")
    return replace(row, **{name: getattr(row, name) * scale for name in names})
