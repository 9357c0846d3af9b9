"""Reasons why a training plan cannot run: one per row, the first that applies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats
from simulators.training.job import Job, Plans
from simulators.training.memory import RankMemory, oom_probability, stage_name
from simulators.training.metrics import expected_loss, tokens_to_loss
from simulators.training.schedule import DUALPIPE_V, INTERLEAVED, PAIRING, SCHEDULES
from simulators.training.stages import layout_error

GB = 1e9
SHARDED_WEIGHTS = 3
"""ZeRO stage that shards weights."""


def memory_reasons(job: Job, plans: Plans, memory: RankMemory, limits: Floats) -> list[str]:
    """Return for each row the reason it exceeds the GPU's memory, or an empty string.

    `limits` are the largest accepted probabilities of running out of memory.
    """
    has = job.gpu.hbm_bytes
    risks = oom_probability(memory.total, has)
    return [
        f"memory_exceeds_hbm: needs {size / GB:.1f} GB on the {stage_name(rank, pp)}, "
        f"has {has / GB:.1f} GB"
        + (f", a risk of {100 * risk:.0f} % of running out" if size <= has else "")
        if risk > limit
        else ""
        for size, rank, pp, risk, limit in zip(
            *(column.tolist() for column in (memory.total, memory.rank, plans.pp, risks, limits)),
            strict=True,
        )
    ]


def plan_reasons(job: Job, plans: Plans, batch: NDArray[Any], targets: Floats) -> list[str]:
    """Return for each row the reason why its plan cannot run, or an empty string.

    `batch` are the sequences of a step, `targets` the target losses (0: none).
    """
    reasons = _Reasons(plans.size)
    reasons.note(
        batch != plans.dp * plans.micro_batch * plans.micro_batches,
        "batch_not_divisible: {} sequences over dp {} x micro_batch {:g}",
        *(batch, plans.dp, plans.micro_batch),
    )
    _note_stages(reasons, job, plans)
    _note_schedule(reasons, plans)
    _note_ranks(reasons, job, plans)
    _note_loss(reasons, job, targets)
    return reasons.by_row


class _Reasons:
    """The first reason of each row."""

    def __init__(self, rows: int) -> None:
        self.by_row = [""] * rows

    def note(self, broken: NDArray[np.bool_], words: str, *columns: Any) -> None:
        """Give the rows in `broken` a reason, `words` formatted with the row's values."""
        values = [np.broadcast_to(column, len(self.by_row)) for column in columns]
        for row in np.flatnonzero(broken):
            reason = self.by_row[row] or words.format(*(value[row] for value in values))
            self.by_row[row] = reason


def _note_stages(reasons: _Reasons, job: Job, plans: Plans) -> None:
    """Note rows whose layers cannot be distributed over pipeline stages."""
    model, pp, layout = job.model, plans.pp, job.pipeline_layout
    first, last = plans.first, plans.last
    is_uneven, between = (first > 0) | (last > 0), pp - (first > 0) - (last > 0)
    rest = model.layers - first - last
    is_pairing, schedules = np.isin(plans.schedule, PAIRING), _schedules(plans)
    reasons.note(
        is_uneven & ((pp == 1) | is_pairing | (layout != "")),
        "uneven_stages: first_stage_layers {} and last_stage_layers {} need pp > 1, no "
        "pipeline_layout, and another schedule than dualpipe; pp {}, {}",
        *(first, last, pp, schedules),
    )
    reasons.note(
        is_uneven
        & (
            ((first % plans.chunks) + (last % plans.chunks) > 0)
            | (rest < between)
            | (rest % np.maximum(1, between * plans.chunks) > 0)
            | ((between == 0) & (rest > 0))
        ),
        "uneven_stages_do_not_divide: {} layers, {} on the first and {} on the last rank (0: as "
        "many as others), over pp {} x chunks {}",
        *(model.layers, first, last, pp, plans.chunks),
    )
    reasons.note(
        (is_uneven | (layout != "")) & (plans.zero >= SHARDED_WEIGHTS),
        "uneven_stages_under_zero_3: zero 3 is modelled for even stages only; write zero 0, 1 or 2",
    )
    if layout:
        reasons.note(is_pairing, "pipeline_layout_under_dualpipe: {} needs even stages", schedules)
        for ranks, chunks in sorted(set(zip(pp.tolist(), plans.chunks.tolist(), strict=True))):
            if wrong := layout_error(job.pipelined, ranks, chunks):
                reasons.note((pp == ranks) & (plans.chunks == chunks), wrong)
    reasons.note(
        (layout == "")
        & (pp * plans.chunks > model.layers + np.where(pp > 1, 2, 0)),  # embedding and head alone
        "pp_exceeds_layers: pp {} x chunks {}, {} layers",
        *(pp, plans.chunks, model.layers),
    )


def _note_schedule(reasons: _Reasons, plans: Plans) -> None:
    """Note rows whose chunks or micro-batches do not fit their pipeline schedule."""
    pp, m, schedules = plans.pp, plans.micro_batches, _schedules(plans)
    is_interleaved, is_folded = plans.schedule == INTERLEAVED, plans.schedule == DUALPIPE_V
    is_pairing, twice = np.isin(plans.schedule, PAIRING), plans.models > 1
    reasons.note(
        np.where(is_folded, plans.chunks != 2, (plans.chunks > 1) & ~is_interleaved),
        "chunks_need_interleaving: {} under {}",
        *(plans.chunks, schedules),
    )
    reasons.note(
        is_interleaved & (pp > 1) & (m % pp > 0),
        "micro_batches_not_multiple_of_pp: {} micro-batches, pp {}, interleaved",
        *(m, pp),
    )
    reasons.note(
        is_pairing & ((m < 2 * pp) | (twice & ((pp % 2 > 0) | (m % 2 > 0)))),
        "micro_batches_too_few_to_pair: {} micro-batches, pp {}, {}",
        *(m, pp, schedules),
    )


def _note_ranks(reasons: _Reasons, job: Job, plans: Plans) -> None:
    """Note rows whose ranks cannot hold the shards, experts or offloaded layers."""
    copies = plans.dp * job.cp * plans.models
    reasons.note(
        copies % plans.shards > 0,
        "shard_ranks_do_not_divide: {} of {} copies",
        *(plans.shards, copies),
    )
    ranks = plans.dp * job.cp * job.tp
    reasons.note(
        ranks % (job.ep * job.expert_tp) > 0,
        "experts_exceed_ranks: ep {} x expert_tp {} of {} ranks of a stage",
        *(job.ep, job.expert_tp, ranks),
    )
    layers = np.ceil(job.model.layers / plans.pp)
    reasons.note(
        plans.offloaded > layers,
        "offload_exceeds_stage: offload_layers {:g}, a rank has {:g} layers",
        *(plans.offloaded, layers),
    )
    reasons.note(
        ((plans.offloads > 0) | (plans.offloaded > 0)) & (job.gpu.pcie_bytes_per_s <= 0.0),
        "no_host_link: gpu '{}' states no pcie_bytes_per_s",
        job.gpu.name,
    )


def _note_loss(reasons: _Reasons, job: Job, targets: Floats) -> None:
    """Note rows whose target loss the scaling law does not describe or reach."""
    weights = job.model.active_parameters
    reasons.note(
        (targets > 0) & (job.lora_rank > 0),
        "loss_of_adapters: the scaling law describes models trained from scratch; set tokens, "
        "not target_loss",
    )
    reasons.note(
        (targets > 0) & np.isinf(tokens_to_loss(weights, targets)),
        "loss_out_of_reach: {:g}; a scaling law expects {} to stay above {:.3g}",
        *(targets, job.model.name, expected_loss(weights, np.array(np.inf))),
    )


def _schedules(plans: Plans) -> NDArray[np.str_]:
    return np.array([*SCHEDULES, ""])[plans.schedule]
