"""Sailor's measured iterations over several nodes, and the layers they consist of, timed alone.

The column `mbs` of the table of sizes holds tensor ranks: weights of a layer are divided by it, and
activations are those of one sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.stages.profiled import TimedStage
from lab.tables.rows import Record, read_records

ITERATIONS = "training_modern/sailor_iteration_time.parquet"
PROFILES = "training_modern/sailor_layer_profile.parquet"
LAYERS = "training_modern/sailor_layer_info.parquet"

BROKEN = ("GPT-Neo-2.7", 1024)
"""Iterations of this model and batch are three times the sum of the published profile."""

COPIES = ("clariden/OPT-350/N4/plan_config_N4_D4.json", "mit/N6/plan_config_N6_D2.json")
"""Rows whose numbers are copies of another's (the table's README)."""


@dataclass(frozen=True)
class ProfiledPlan:
    """One measured plan, with its stages from the profile, without the sum of gradients."""

    name: str
    cluster: str
    model: str
    stages: tuple[TimedStage, ...]
    micro_batch: int
    micro_batches: int
    pp: int
    dp: int
    send_bytes: float  # of a micro-batch, to the next stage
    gradient_bytes: float  # of the stage with most weights, on one rank
    seconds: float
    sync_s: float
    peak_bytes: float
    held_bytes: float  # weights and activations as the profile counts them

    def with_sync(self, sync_s: float) -> tuple[TimedStage, ...]:
        """Return the stages with the time of summing their gradients."""
        return tuple(replace(stage, sync_s=sync_s) for stage in self.stages)


def iterations(reference: Path) -> Iterator[ProfiledPlan]:
    """Yield plans whose layers were all profiled; copies and broken rows are left out."""
    times = {
        (row.model, row.gpu, row.mbs, row.tp, int(row.layer)): (row.fwd_s, row.bwd_s, row.update_s)
        for row in read_records(reference / PROFILES)
    }
    sizes = {
        (row.model, int(row.mbs), int(row.layer)): row for row in read_records(reference / LAYERS)
    }
    for row in read_records(reference / ITERATIONS):
        if (row.model, row.gbs) != BROKEN and row.file not in COPIES:
            found = _iteration(row, times, sizes)
            if found is not None:
                yield found


def _iteration(
    row: Record,
    times: Mapping[tuple[Any, ...], tuple[float, float, float]],
    sizes: Mapping[tuple[str, int, int], Record],
) -> ProfiledPlan | None:
    """Return one plan; None where a layer was not timed."""
    [plan] = json.loads(row.pipeline_list)
    layers, placed = plan["layers_per_stage"], plan["tmp_per_stage"]
    mbs, model = row.mbs, row.model
    micro_batches = row.gbs // (row.dp * mbs)
    stages, most, held = [], 0.0, 0.0
    for stage, replicas in zip(layers, placed, strict=True):
        kinds = {(replica[0][0][0], replica[1]) for replica in replicas}
        sums = []
        for gpu, tp in kinds:
            keys = [(model, gpu, mbs, tp, layer) for layer in stage]
            if any(key not in times for key in keys):
                return None
            sums.append([sum(times[key][i] for key in keys) for i in range(3)])
        stages.append(TimedStage(*max(sums, key=lambda one: one[0] + one[1])))
        tp = max(tp for _, tp in kinds)
        known = [sizes[model, tp, layer] for layer in stage if (model, tp, layer) in sizes]
        weights = float(sum(one.params_bytes for one in known))
        most = max(most, weights)
        in_flight = min(len(layers) - len(stages) + 1, micro_batches)
        # fp32 weights, gradients and Adam's two moments; logits in four copies where there are any
        logits = 4 * mbs * known[-1].act_output_bytes if stage is layers[-1] and known else 0.0
        activations = in_flight * mbs * sum(one.act_mem_bytes for one in known)
        held = max(held, 4 * weights + activations + logits)
    boundary = sizes.get((model, placed[0][0][1], layers[0][-1]))
    return ProfiledPlan(
        name=row.file,
        cluster=row.cluster,
        model=model,
        stages=tuple(stages),
        micro_batch=mbs,
        micro_batches=micro_batches,
        pp=row.pp,
        dp=row.dp,
        send_bytes=float(mbs * boundary.act_output_bytes) if boundary else 0.0,
        gradient_bytes=most,
        seconds=row.iter_time_s,
        sync_s=row.grad_sync_s,
        peak_bytes=row.peak_mem_bytes,
        held_bytes=held,
    )
