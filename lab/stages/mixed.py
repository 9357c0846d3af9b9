"""A pipeline over several kinds of GPUs: the layers of each stage are priced on its own GPU.

Every stage has as many ranks, of one kind, and its share of the layers: as many as let it end with
the others, as in Metis (Um et al., USENIX ATC 2024). A step ends with its slowest stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.stages.profiled import TimedStage, timed_step_s
from simulators.catalog.cluster import AUTO
from simulators.core.errors import Infeasible, UserError
from simulators.core.jit import Floats
from simulators.training.constants import load_constants
from simulators.training.memory import rank_memory
from simulators.training.metrics import job_of, plans_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.schedule.play import DENSE, EXPERTS, HEAD, SEND
from simulators.training.step import after_passes, late_share, passes_of, work_of


@dataclass(frozen=True)
class MixedStep:
    """A step over stages of several kinds of GPUs."""

    step_s: float
    layers: tuple[int, ...]  # of each stage


@dataclass(frozen=True)
class _Kind:
    """One micro-batch on one kind of GPU, and what comes after the passes."""

    parts: Floats
    after_s: float
    update_s: float
    most_layers: int  # that fit its memory


def mixed_step(point: TrainingPoint, gpus: Sequence[str]) -> MixedStep:
    """Return the step of a design whose `pp` stages stand on the GPUs named, first to last.

    Raises:
        Infeasible: the GPUs together cannot hold the layers.
        UserError: there are other than `pp` GPUs, or layers with experts and without.
    """
    if len(gpus) != point.pp:
        raise UserError(f"{point.pp} pipeline stages need as many gpus, {len(gpus)} are named")
    kinds = {name: _kind(replace(point, gpu=name, cluster=AUTO)) for name in dict.fromkeys(gpus)}
    model = job_of(vars(point)).model
    if 0 < model.expert_layers < model.layers:
        raise UserError(f"layers of '{model.name}' differ; stages of several GPUs need even ones")
    stages = [kinds[name] for name in gpus]
    layers = _balanced(stages, model.layers)
    timed = [
        _stage(kind, n, place, len(gpus))
        for place, (kind, n) in enumerate(zip(stages, layers, strict=True))
    ]
    plans = plans_of(batch_of([point]))
    micro_batches = int(plans.micro_batches[0])
    send_s = max(float(kind.parts[SEND] + kind.parts[SEND + 1]) for kind in stages)
    seconds = timed_step_s(timed, micro_batches, send_s=send_s)
    late = float(late_share(job_of(vars(point)), plans, load_constants())[0])
    return MixedStep(seconds * (1.0 + late), tuple(layers))


def _kind(point: TrainingPoint) -> _Kind:
    """Return what a micro-batch takes on the GPU of a design, and how many layers a stage holds."""
    job, plans, constants = job_of(vars(point)), plans_of(batch_of([point])), load_constants()
    work = work_of(job, plans)
    parts = passes_of(work, constants).parts
    data_s, update_s = after_passes(work, parts, constants)
    whole = float(rank_memory(job, plans).total[0])
    stage = int(np.ceil(job.model.layers / point.pp))
    most = int(stage * job.gpu.hbm_bytes / whole)
    return _Kind(parts[0], float(data_s[0]), float(update_s[0]), most)


def _stage(kind: _Kind, layers: int, place: int, stages: int) -> TimedStage:
    """Return a stage of some layers; the first has the embedding, the last the head."""
    passes = layers * (kind.parts[DENSE:EXPERTS] + kind.parts[EXPERTS:HEAD])
    if place == 0:
        passes = passes + kind.parts[:DENSE]
    if place == stages - 1:
        passes = passes + kind.parts[HEAD:SEND]
    return TimedStage(float(passes[0]), float(passes[1:].sum()), kind.update_s, kind.after_s)


def _balanced(stages: Sequence[_Kind], layers: int) -> list[int]:
    """Return layers of each stage: one by one they go where the stage is then the quickest."""
    found = [1] * len(stages)
    for _ in range(layers - len(stages)):
        takes = [
            np.inf if n >= kind.most_layers else _takes_s(kind, n + 1, place, len(stages))
            for place, (kind, n) in enumerate(zip(stages, found, strict=True))
        ]
        least = int(np.argmin(takes))
        if np.isinf(takes[least]):
            raise Infeasible(
                "memory_exceeds_hbm", f"the stages hold {sum(found)} of {layers} layers"
            )
        found[least] += 1
    return found


def _takes_s(kind: _Kind, layers: int, place: int, stages: int) -> float:
    """Return the seconds of both passes of a stage."""
    stage = _stage(kind, layers, place, stages)
    return stage.forward_s + stage.backward_s
