"""One training step: passes of every stage, the pipeline schedule, gradients and the optimizer.

    stage     kernels at their paces, waits between layers, exposed messages
    pipeline  end of the tasks of each rank (`pipeline.py`)
    after     exposed gradients and weights, and the optimizer
    late      wait for the slowest data rank

A host that launches kernels one by one runs ahead of its GPU until launching a pass takes longer
than its kernels; MLPerf Training v4.1 and later submissions avoid that by CUDA graphs.

The fitted shares of hidden messages and paces of kernels are `Constants` in `job.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulators.catalog.gpu import Gpu, load_gpu
from simulators.core.columns import FITTED, LEVELS, Shares
from simulators.core.jit import Floats, Ints
from simulators.evidence.lookup import sources
from simulators.evidence.transfer import ARCHITECTURE
from simulators.kernels.energy import idle_w_of, peak_w_of
from simulators.kernels.price import flops, price
from simulators.training.communication import (
    CONTEXT,
    EXPERTS,
    LAYERS,
    TENSOR,
    Exchange,
    Messages,
    exchange,
    messages,
    send_s,
)
from simulators.training.job import (
    FLASH,
    FLASH_FP8,
    FUSED,
    MLP,
    MOE,
    RINGS,
    Constants,
    Job,
    Plans,
    hides_expert_exchange,
)
from simulators.training.memory import layer_activation_bytes
from simulators.training.operator_prices import ATTENTION, PRODUCTS, SCORES, Piece, pieces
from simulators.training.operators import (
    FORWARD,
    INPUTS,
    PHASES,
    PIECES,
    WEIGHTS,
    merged_passes,
    pass_repeats,
)
from simulators.training.pipeline import BLOCKED, COLUMNS, DENSE, HEAD, MTP, SEND, pipelines_s
from simulators.training.pipeline import EXPERTS as EXPERT
from simulators.training.schedule import INTERLEAVED, PAIRING, ZERO_BUBBLE
from simulators.workload.operators import Gemm

GRADIENTS, GATHERED, SHARDED = "gradients", "gathered", "sharded"

DISPATCH_SMS = 32
"""SMs that messages to experts occupy while other kernels run (`moe_hybridep_num_sms` of NVIDIA's
recipes; NCCL's channels are as many)."""

LONG_PRODUCT = Gemm(name="long", m=8192.0, n=8192.0, k=8192.0, dtype="bf16")
"""A product that runs at the power limit of most GPUs, of the size of training's products."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step times of each row in seconds; parts belong to one rank of a stage of mean length."""

    step_s: Floats
    pipeline_s: Floats  # until the last rank has run its tasks
    compute_s: Floats  # kernels of one rank
    bubble_s: Floats  # waits of a rank for other stages
    tp_comm_s: Floats  # exposed messages
    cp_comm_s: Floats
    ep_comm_s: Floats
    dp_comm_s: Floats
    straggler_s: Floats  # wait for the slowest data rank
    optimizer_s: Floats
    loading_s: Floats  # wait for the batch beyond the time of the step before
    flops: Floats  # of forward and backward passes of the whole batch, on all GPUs
    energy_j: Floats  # of all GPUs
    shares: Shares  # of kernels and messages, by evidence level


@dataclass(frozen=True, kw_only=True)
class Work:
    """Kernels and messages of the rows of a job, timed alone, before fitted constants."""

    job: Job
    plans: Plans
    which: Ints  # column of the rows' micro-batch size
    pieces: Mapping[str, Piece]
    messages: Mapping[str, Messages]
    exchange: Exchange
    send_s: Floats
    power: float  # rate of matrix units in a step over that by which they are priced


def work_of(job: Job, plans: Plans) -> Work:
    """Return the kernels and messages of the rows of a job."""
    sizes, inverse = np.unique(plans.micro_batch, return_inverse=True)
    priced = pieces(job, sizes)
    return Work(
        job=job,
        plans=plans,
        which=inverse.astype(np.int64),
        pieces=priced,
        messages={name: messages(job, name, sizes) for name in priced},
        exchange=exchange(job, plans),
        send_s=send_s(job, plans),
        power=relative_power(job.gpu),
    )


def relative_power(gpu: Gpu) -> float:
    """Return the rate of a GPU's matrix units over the rate by which they are priced.

    A GPU without measured products takes the rates of a GPU of its architecture. Long products run
    at the power limit, where rates are in proportion to power beyond idling, so what differs is the
    power per FLOP of the data sheets. A GPU with much power per FLOP is limited by its peak rate
    instead.

    >>> from simulators.catalog.gpu import load_gpu
    >>> [round(relative_power(load_gpu(name)), 2) for name in ("gb300", "gb200", "h100_sxm", "h20")]
    [1.19, 1.0, 1.0, 1.03]
    """
    nearest = sources("tensor", gpu.measured_as or gpu.name, gpu.architecture)
    if not nearest or nearest[0].relation != ARCHITECTURE:
        return 1.0
    own, source = (
        (one.tdp_w - idle_w_of(one)) / one.peak("bf16") for one in (gpu, load_gpu(nearest[0].gpu))
    )
    at_peak_s = float(flops(LONG_PRODUCT)) / gpu.peak("bf16")
    return min(own / source, max(1.0, float(price(LONG_PRODUCT, gpu).latency_s) / at_peak_s))


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Seconds per micro-batch on the ranks of each row."""

    parts: Floats  # seconds of all parts, in the columns of `pipeline.py`
    exposed: Mapping[str, Floats]  # exposed messages of all layers
    compute: Floats  # kernels of all layers, embedding and head


def passes_of(work: Work, constants: Constants) -> Passes:
    """Return the seconds of a micro-batch on each rank, without the pipeline."""
    job, plans, priced = work.job, work.plans, work.pieces
    parts = np.zeros((plans.size, COLUMNS))
    exposed = {what: np.zeros(plans.size) for what in (TENSOR, CONTEXT, EXPERTS, GRADIENTS)}
    counts = counts_of(job)
    compute = np.zeros(plans.size)
    for place, name in enumerate(PIECES):
        if name not in priced:
            continue
        passes = _passes(work, name, constants)
        unhidden = _exposed(work, name, passes, constants)
        sharded = _sharded(work.exchange, passes, constants, plans) if name in LAYERS else {}
        for kind, column in enumerate((FORWARD, INPUTS, WEIGHTS)):
            parts[:, DENSE * place + kind] = passes[column]
        for (direction, what), seconds in (unhidden | sharded).items():
            parts[:, DENSE * place + (0 if direction == FORWARD else 1)] += seconds
            exposed[what] += counts[name] * seconds
        compute += counts[name] * sum(passes.values())
        if is_launched(name, job):
            shown = parts[:, DENSE * place : DENSE * (place + 1)]
            sent = work.messages[name]
            waits = launch_waits_s(priced[name].launches, sent, shown, constants, plans)
            shown[:, :2] += waits
            compute += counts[name] * waits.sum(axis=1)
        if name in LAYERS and plans.offloaded.any():
            waits = _offload_waits_s(job, plans, name, passes)
            parts[:, DENSE * place : DENSE * place + 2] += waits
            compute += counts[name] * waits.sum(axis=1)
    if job.mtp_layers:
        last = EXPERT if job.model.experts else DENSE
        parts[:, MTP : MTP + 3] = parts[:, HEAD : HEAD + 3] + parts[:, last : last + 3]
    blocks = (plans.schedule != INTERLEAVED) | (plans.overlaps == 0)
    blocks &= ~np.isin(plans.schedule, (ZERO_BUBBLE, *PAIRING))
    parts[:, SEND] = np.where(blocks, 0.0, work.send_s)
    parts[:, BLOCKED] = np.where(blocks, work.send_s, 0.0)
    return Passes(parts=parts, exposed=exposed, compute=compute)


def after_passes(work: Work, parts: Floats, constants: Constants) -> tuple[Floats, Floats]:
    """Return the exposed seconds of gradients and weights after the passes, and of the update.

    Hosts read back a step's loss and norm, start its update and fetch the next batch.
    """
    plans, done = work.plans, work.exchange
    layers_on_rank = work.job.model.layers / plans.pp
    backward_s = layers_on_rank * (parts[:, 4] + parts[:, 5] + parts[:, 7] + parts[:, 8])
    forward_s = layers_on_rank * (parts[:, 3] + parts[:, 6])
    dp_comm_s = _left(done.gradients_s, backward_s, constants.exposed.get(GRADIENTS, 0.0), plans)
    dp_comm_s = dp_comm_s + _left(
        done.weights_s, forward_s, constants.exposed.get(GATHERED, 0.0), plans
    )
    streams = constants.streams.get(FUSED, 1.0)
    dp_comm_s = dp_comm_s + done.compressing_s * streams
    optimizer_s = done.optimizer_s * streams
    host_s = done.host_s + (0.0 if work.job.cuda_graphs else constants.step_s)
    return dp_comm_s, optimizer_s + host_s + _left(done.to_host_s, backward_s, 0.0, plans)


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Seconds of the parts of a step that follow each other, by row."""

    passes: Passes
    pipeline_s: Floats
    dp_comm_s: Floats
    optimizer_s: Floats
    straggler_s: Floats

    @property
    def step_s(self) -> Floats:
        """Time of the step."""
        return self.pipeline_s + self.dp_comm_s + self.optimizer_s + self.straggler_s


def steps(work: Work, constants: Constants) -> Steps:
    """Return the step times of each row."""
    [found] = steps_of_jobs([work], constants)
    return found


def steps_of_jobs(works: Sequence[Work], constants: Constants) -> list[Steps]:
    """Return the step times of the rows of several jobs, whose pipelines are played together."""
    done = step_parts(works, constants)
    return [_steps(work, one) for work, one in zip(works, done, strict=True)]


def step_parts(works: Sequence[Work], constants: Constants) -> list[StepParts]:
    """Return the parts of the steps of several jobs, without energy and evidence."""
    if not works:
        return []
    passes = [passes_of(work, constants) for work in works]
    models = list(dict.fromkeys(work.job.pipelined for work in works))
    shapes = [
        np.column_stack(
            [p.schedule, p.pp, p.chunks, p.micro_batches, p.first, p.last, np.full(p.size, model)]
        )
        for p, model in ((work.plans, models.index(work.job.pipelined)) for work in works)
    ]
    parts = np.concatenate([one.parts for one in passes])
    ends_s = pipelines_s(np.concatenate(shapes), models, parts)
    starts = np.cumsum([len(shape) for shape in shapes])[:-1]
    return [
        _step_parts(work, one, pipeline_s, constants)
        for work, one, pipeline_s in zip(works, passes, np.split(ends_s, starts), strict=True)
    ]


def _step_parts(work: Work, passes: Passes, pipeline_s: Floats, constants: Constants) -> StepParts:
    job, plans = work.job, work.plans
    dp_comm_s, optimizer_s = after_passes(work, passes.parts, constants)
    worked_s = pipeline_s + dp_comm_s + optimizer_s
    if job.cuda_graphs:  # nothing is read back, but hosts need as long for the next graphs
        optimizer_s = optimizer_s + np.maximum(0.0, constants.step_s - worked_s)
        worked_s = np.maximum(worked_s, constants.step_s)
    return StepParts(
        passes=passes,
        pipeline_s=pipeline_s,
        dp_comm_s=dp_comm_s,
        optimizer_s=optimizer_s,
        # Measured steps of one layout grow by much the same share when the data ranks double.
        straggler_s=constants.late * np.log2(plans.dp * job.cp) * worked_s,
    )


def _steps(work: Work, done: StepParts) -> Steps:
    job, plans = work.job, work.plans
    exposed, compute = done.passes.exposed, done.passes.compute
    pipeline_s, dp_comm_s, step_s = done.pipeline_s, done.dp_comm_s, done.step_s
    counts, which = counts_of(job), work.which
    per_rank = plans.micro_batches / plans.pp
    busy_s = per_rank * (compute + sum(exposed.values()))
    ranks = plans.pp * plans.dp * job.tp * job.cp
    forward_flops = sum(counts[name] * piece.flops[which] for name, piece in work.pieces.items())
    return Steps(
        step_s=step_s,
        pipeline_s=pipeline_s,
        compute_s=per_rank * compute,
        bubble_s=np.where(plans.pp > 1, np.maximum(0.0, pipeline_s - busy_s), 0.0),
        tp_comm_s=per_rank * exposed[TENSOR],
        cp_comm_s=per_rank * exposed[CONTEXT],
        ep_comm_s=per_rank * exposed[EXPERTS],
        dp_comm_s=dp_comm_s + per_rank * exposed[GRADIENTS],
        straggler_s=done.straggler_s,
        optimizer_s=done.optimizer_s,
        loading_s=np.zeros(plans.size),
        flops=(2.0 if job.lora_rank else 3.0) * forward_flops * per_rank * ranks,
        energy_j=_energy_j(work, step_s) * ranks,
        shares=_shares(work, per_rank, busy_s - per_rank * compute + dp_comm_s),
    )


def after_loading(done: Steps, read_s: Floats, job: Job, plans: Plans) -> Steps:
    """Return steps with their wait for batches, which are read during the step before."""
    waits_s = np.maximum(0.0, read_s - done.step_s)
    ranks = plans.pp * plans.dp * job.tp * job.cp
    return replace(
        done,
        step_s=done.step_s + waits_s,
        loading_s=waits_s,
        energy_j=done.energy_j + waits_s * idle_w_of(job.gpu) * ranks,
    )


def _shares(work: Work, per_rank: Floats, messages_s: Floats) -> Shares:
    """Return the shares of a step by evidence level; a wait has the level of its cause.

    Exposed messages count as fitted.
    """
    seconds, counts = np.zeros((len(LEVELS), work.plans.size)), counts_of(work.job)
    for name, piece in work.pieces.items():
        seconds += counts[name] * piece.by_level[:, work.which] * per_rank
    seconds[FITTED] += messages_s
    return np.asarray(seconds / seconds.sum(axis=0), np.float64)


def counts_of(job: Job) -> dict[str, float]:
    """Return the number of occurrences of each piece in a model."""
    model = job.model
    dense = model.layers - model.expert_layers
    extra = job.mtp_layers
    return {
        "embedding": 1.0,
        "dense": dense + (0 if model.experts else extra),
        "experts": model.expert_layers + (extra if model.experts else 0),
        "head": 1.0 + extra,
    }


def pace(constants: Constants, work: Work, kind: str) -> float:
    """Return the pace of a kind of kernels on the job's GPU; 1 without measured rows."""
    job, matrix = work.job, 1.0 / work.power
    on = f"_{job.gpu.architecture}"
    attention = FLASH if job.attention == FLASH_FP8 else job.attention
    if kind in PRODUCTS:
        narrow = constants.formats.get(kind, 1.0)
        return matrix * narrow * constants.products.get(job.gpu.architecture, 1.0)
    if kind == ATTENTION:
        return matrix * constants.attention.get(attention + on, 1.0)
    if kind == SCORES:
        return constants.attention.get(attention + on, 1.0)
    return constants.streams.get(job.fusion, 1.0)


def _passes(work: Work, name: str, constants: Constants) -> dict[str, Floats]:
    sums = {phase: np.zeros(work.plans.size) for phase in PHASES}
    for (phase, kind), column in work.pieces[name].seconds.items():
        sums[phase] += pace(constants, work, kind) * column[work.which]
    if is_launched(name, work.job):
        for phase in (FORWARD, INPUTS):
            sums[phase] += constants.mixture_s if name == "experts" else constants.layer_s
    return merged_passes(sums, work.plans, is_layer=name in LAYERS)


def _exposed(
    work: Work, name: str, passes: Mapping[str, Floats], constants: Constants
) -> dict[tuple[str, str], Floats]:
    job, plans, which, sent = work.job, work.plans, work.which, work.messages[name]
    hides_experts = hides_expert_exchange(job, plans)
    others = {FORWARD: passes[INPUTS] + passes[WEIGHTS], INPUTS: passes[FORWARD]}
    found: dict[tuple[str, str], Floats] = {}
    share: float | Floats
    for direction, sizes in ((FORWARD, sent.forward), (INPUTS, sent.backward)):
        for what, column in sizes.items():
            seconds = column[which]
            if direction == INPUTS:
                seconds = seconds + sent_again(name, what, plans) * sent.forward[what][which]
            if what == CONTEXT and job.cp > 1 and job.context_exchange in RINGS:
                computing_s = work.pieces[name].seconds.get(
                    (direction, ATTENTION), np.zeros_like(column)
                )
                seconds = np.maximum(0.0, seconds - computing_s[which])
            if what == EXPERTS:
                beside = np.minimum(seconds, others[direction])
                occupied = min(1.0, DISPATCH_SMS / job.gpu.sm_count)
                left = seconds - (1.0 - occupied) * beside
                seconds = np.where(hides_experts, left, seconds)
            share = 1.0 if what == CONTEXT else constants.exposed.get(what, 1.0)
            if what == TENSOR:  # pipelined with the products around the sum
                share = np.where(plans.tp_overlaps > 0, share, 1.0)
            found[direction, what] = share * seconds
    return found


def _offload_waits_s(job: Job, plans: Plans, name: str, passes: Mapping[str, Floats]) -> Floats:
    """Return the mean waits of a layer for activations on their way to the host and back.

    Columns: forward, backward. A layer's activations cross during the layer next to it.
    """
    kept, _ = layer_activation_bytes(job, plans, has_experts=name == "experts")
    crossing_s = kept * plans.micro_batch * job.sequence / job.cp / job.gpu.pcie_bytes_per_s
    share = np.minimum(1.0, plans.offloaded * plans.pp / job.model.layers)
    forward_s, backward_s = passes[FORWARD], passes[INPUTS] + passes[WEIGHTS]
    hidden_s = np.stack([forward_s, backward_s], axis=1)
    waits_s = share[:, None] * np.maximum(0.0, crossing_s[:, None] - hidden_s)
    return np.asarray(waits_s, np.float64)


def sent_again(name: str, what: str, plans: Plans) -> Floats:
    """Return how often the recomputation of a layer repeats messages of its forward pass.

    A recomputed feed-forward block repeats its own messages: all of experts, one tensor sum of two.
    """
    block = MOE if name == "experts" else MLP
    part = {EXPERTS: 1.0, TENSOR: 0.5 if name == "dense" else 0.0}.get(what, 0.0)
    repeats = part * (plans.recompute & block > 0)
    return np.asarray(np.maximum(plans.again, repeats), np.float64)


def _sharded(
    done: Exchange, passes: Mapping[str, Floats], constants: Constants, plans: Plans
) -> dict[tuple[str, str], Floats]:
    """Return the seconds that weight all-gather and gradient reduce-scatter add to a pass."""
    share = constants.exposed.get(SHARDED, 0.0)
    forward, backward = passes[FORWARD], passes[INPUTS] + passes[WEIGHTS]
    gather, both = done.layer_gather_s, done.layer_gather_s + done.layer_scatter_s
    return {
        (FORWARD, GRADIENTS): _left(gather, forward, share, plans),
        (INPUTS, GRADIENTS): _left(both, backward, share, plans),
    }


def _left(sending_s: Floats, window_s: Floats, share: float, plans: Plans) -> Floats:
    """Return the exposed seconds of an exchange: a fixed share, or all beyond the window."""
    hidden = np.maximum(share * sending_s, sending_s - window_s)
    return np.where(plans.overlaps > 0, hidden, sending_s)


def _energy_j(work: Work, step_s: Floats) -> Floats:
    """Return the joules of one rank: kernels, and idle power in the remaining time.

    A kernel that takes longer than its model says has the same dynamic energy, and idle power in
    the additional time.
    """
    plans, counts = work.plans, counts_of(work.job)
    spent_j, kernels_s = np.zeros(plans.size), np.zeros(plans.size)
    for name, piece in work.pieces.items():
        for (phase, kind), joules in piece.joules.items():
            often = pass_repeats(phase, plans, is_layer=name in LAYERS)
            times = counts[name] * often * plans.micro_batches / plans.pp
            spent_j += times * joules[work.which]
            kernels_s += times * piece.seconds[phase, kind][work.which]
    spent_j += (step_s - kernels_s) * idle_w_of(work.job.gpu)
    return np.minimum(spent_j, peak_w_of(work.job.gpu) * step_s)


def is_launched(piece: str, job: Job) -> bool:
    """Return whether the host launches the kernels of a piece separately, without CUDA graphs."""
    return piece in LAYERS and not (job.cuda_graphs or job.layer_graphs)


def launch_waits_s(
    launches: Mapping[str, float], sent: Messages, shown: Floats, constants: Constants, plans: Plans
) -> Floats:
    """Return the launch waits of a layer's forward and backward pass in seconds.

    `shown` has the seconds of a layer's forward pass, input and weight gradients, by row.
    """
    kernels = {phase: np.full(plans.size, launches.get(phase, 0.0)) for phase in PHASES}
    often = merged_passes(kernels, plans, is_layer=True)
    kernels_of = np.stack([often[FORWARD], often[INPUTS] + often[WEIGHTS]], axis=1)
    forward, backward = sent.launches
    messages = np.stack([np.full(plans.size, forward), backward + plans.again * forward], axis=1)
    taken = np.stack([shown[:, 0], shown[:, 1] + shown[:, 2]], axis=1)
    waits_s = np.maximum(0.0, constants.launch_s * (kernels_of + messages) - taken)
    return np.asarray(waits_s, np.float64)
