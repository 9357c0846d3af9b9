"""Contributions to the time, energy and memory of one pass, operator by operator.

`price.py` adds up the same rows, so their sum is the pass. Waits for links, for the host and for
other pipeline stages have separate rows. Rows without time have a note with the change of the pass
without an effect.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulators.catalog.accelerator import sheet_name
from simulators.composition.operator_prices import Row
from simulators.composition.price import Iteration, part_iteration, part_rows, pipeline_iterations
from simulators.composition.replica import EFFECTS, Effects, Replica
from simulators.composition.uncertainty import runtime_level
from simulators.core.columns import LEVELS
from simulators.core.contract import Contribution
from simulators.kernels.price import flops, moved_bytes
from simulators.workload.llm.memory import activation_bytes, stage_weights
from simulators.workload.llm.parallelism import Stage, check_layout, stage_of
from simulators.workload.llm.step import Step
from simulators.workload.operators import Collective, Column, Gemm, GroupedGemm
from simulators.workload.precision import BYTES

LATENT = 0.3
"""A kernel below this share of both rates is bound by latency."""


def explained(replica: Replica, step: Step, phase: str, prompt_s: float) -> list[Contribution]:
    """Return the contributions of every operator, message and wait of a pass.

    Times are those of a stage; energies are sums over the GPUs of the stage; `memory_bytes` is that
    of one GPU. `step` is a single batch, with numbers as sums; `phase` is the name of the rows.

    Raises:
        Infeasible: the parallelism does not fit the model.
    """
    check_layout(replica.model, replica.layout)
    parts = [stage_of(replica.model, replica.layout, i) for i in range(replica.layout.pp)]
    stages = [part_iteration(replica, step, part) for part in parts]
    whole_s = sum(_number(stage.latency_s) for stage in stages) + prompt_s
    rows = []
    for i, (part, stage) in enumerate(zip(parts, stages, strict=True)):
        name = phase if replica.layout.pp == 1 else f"{phase}, stage {i + 1}"
        rows += _stage(replica, step, part, stage, name)
        rows += _memory(replica, step, part, i, name)
        if others_s := whole_s - _number(stage.latency_s):
            idle_j = others_s * stage.waiting_w
            note = "while other stages work, or the host prepares the prompt"
            rows.append(Contribution(phase=name, name="idle", energy_j=idle_j, note=note))
    if prompt_s:
        level = LEVELS[runtime_level(replica)]
        rows.append(
            Contribution(phase=phase, name="tokenise", time_s=prompt_s, bound="host", level=level)
        )
    return [*rows, *_effects(replica, step, whole_s - prompt_s)]


def _effects(replica: Replica, step: Step, latency_s: float) -> list[Contribution]:
    """Return a contribution per effect, with the change of the pass without the effect."""
    lines = []
    for name in EFFECTS:
        effects = replace(replica.effects, **{name: False})
        stages = pipeline_iterations(replace(replica, effects=effects), step)
        change_s = sum(_number(stage.latency_s) for stage in stages) - latency_s
        if change_s:
            which = "longer" if change_s > 0.0 else "shorter"
            note = f"without it the pass would be {abs(change_s) * 1e3:.3f} ms {which}"
            lines.append(Contribution(phase="effects", name=name, note=note))
    return lines


def _stage(
    replica: Replica, step: Step, part: Stage, stage: Iteration, phase: str
) -> list[Contribution]:
    """Return the operators, messages and waits of one stage."""
    rows = [
        _contribution(row, replica, phase)
        for row in part_rows(replica, step, part)
        if np.any(row.seconds)
    ]
    effects = Effects(launch=False, synchronisation=replica.effects.synchronisation)
    of_stage = part.layers, step.prefills + step.decodes, stage.busy_s, replica.cluster
    host_s = _number(replica.runtime.launch_s(*of_stage, effects=effects))
    waits = {"launch gaps": _number(stage.launch_s) - host_s, "host between iterations": host_s}
    return rows + [
        Contribution(
            phase=phase,
            name=name,
            time_s=seconds,
            energy_j=seconds * stage.active_idle_w,
            bound="host",
            level=LEVELS[runtime_level(replica)],
        )
        for name, seconds in waits.items()
        if seconds
    ]


def _contribution(row: Row, replica: Replica, phase: str) -> Contribution:
    """Return a priced row of one GPU as a contribution of all GPUs of its stage."""
    operator, seconds, width = row.operator, _number(row.seconds), replica.layout.width
    if isinstance(operator, Collective):
        work, moved, bound = 0.0, _number(operator.size_bytes) * operator.repeat, "link"
    else:
        work, moved = (_number(f(operator)) * operator.repeat for f in (flops, moved_bytes))
        bound = _bound(work, moved, seconds, getattr(operator, "dtype", "fp32"), replica)
    return Contribution(
        phase=phase,
        name=operator.name,
        count=operator.repeat,
        time_s=seconds,
        energy_j=width * _number(row.joules),
        memory_bytes=_weights(operator),
        flops=width * work,
        moved_bytes=width * moved,
        devices=width,
        bound=bound,
        level=LEVELS[int(np.asarray(row.level).flat[0])],
        on=sheet_name(replica.accelerator) or replica.gpu.name,
    )


def _bound(work: float, moved: float, seconds: float, dtype: str, replica: Replica) -> str:
    """Return the rate of the data sheet that bounds a kernel, or `latency`."""
    if replica.accelerator:
        return "mapping"
    gpu = replica.gpu
    compute = work / (gpu.peak_flops.get(dtype, gpu.peak("fp32")) * seconds)
    memory = moved / (gpu.hbm_bytes_per_s * seconds)
    if max(compute, memory) < LATENT:
        return "latency"
    return "compute" if compute > memory else "memory"


def _weights(operator: object) -> float:
    """Return the bytes of an operator's weights on one GPU."""
    if isinstance(operator, Gemm):
        count = _number(operator.n) * _number(operator.k) * _number(operator.batch)
    elif isinstance(operator, GroupedGemm):
        count = _number(operator.n) * _number(operator.k) * operator.experts
    else:
        return 0.0
    return count * BYTES[operator.weight_dtype or operator.dtype] * operator.repeat


def _memory(
    replica: Replica, step: Step, part: Stage, stage: int, phase: str
) -> list[Contribution]:
    """Return the memory of a GPU of a stage, without the weights of its products."""
    model, layout = replica.model, replica.layout
    rows = part_rows(replica, step, part)
    products = sum(_weights(row.operator) for row in rows if np.any(row.seconds))
    rest = stage_weights(model, layout, replica.dtype, stage).total - products
    keys = _number(step.prefill_kv_tokens) + _number(step.decode_kv_tokens)
    workspace = activation_bytes(model, layout, replica.dtype, step.tokens, step.logits_rows)
    kept = {"other weights": rest, "KV cache": keys * replica.kv_token_bytes}
    kept["workspace"] = _number(workspace)
    return [Contribution(phase=phase, name=name, memory_bytes=size) for name, size in kept.items()]


def _number(column: Column) -> float:
    return float(np.asarray(column).reshape(-1)[0])
