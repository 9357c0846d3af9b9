"""Export training designs as torchrun commands of Megatron-LM.

`megatron.jinja` writes the options. Designs without an option are refused: schedules other than
1F1B (interleaved or not), unbalanced rings, adapters.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from deploy.templates import command, comment, filled
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.core.columns import batch_of
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.training.point import TrainingPoint
from simulators.training.schedule import layers_of_chunk
from simulators.training.simulator import SIMULATOR

TARGET = "megatron"
MASTER = "$MASTER_ADDR:29500"
"""Rendezvous of the ranks; the shell expands the address."""
MAX_QUEUES = 32
"""Largest `CUDA_DEVICE_MAX_CONNECTIONS` (CUDA C++ Programming Guide)."""
OPTIONS = Path(__file__).with_name("megatron.jinja")


class TrainingDeployments:
    """Writes deployments for `sweeper export`."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the script that starts a design; a comment contains `name`.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: unknown target.
            UserError: Megatron-LM has no option for a feature of the design.
        """
        if target not in ("", TARGET):
            raise UnknownNameError("target", target, (TARGET,))
        design = TrainingPoint(**point)
        [answer] = SIMULATOR.evaluate(batch_of(TrainingPoint, vars(design))).to_pylist()
        if answer["status"] == "infeasible":
            reason, _, words = answer["reason"].partition(": ")
            raise Infeasible(reason, words)
        return script(replace(design, tokens=answer["run_tokens"]), name)


DEPLOYMENTS = TrainingDeployments()


def script(design: TrainingPoint, name: str = "") -> str:
    """Return the shell script of a design, one option per line.

    Raises:
        UserError: Megatron-LM has no option for a feature of the design.
    """
    gpus = design.tp * design.pp * design.cp * design.dp
    per_node = min(gpus, cluster_for(design.cluster, load_gpu(design.gpu)).gpus_per_node)
    # Tensor and context parallelism need one queue, so that messages start in the order of the
    # kernels around them; FSDP and overlapped expert messages need many.
    has_many = (design.overlap and _hides_experts(design)) or design.zero >= 2
    start = (
        f"env CUDA_DEVICE_MAX_CONNECTIONS={MAX_QUEUES if has_many else 1} torchrun "
        f"--nnodes {math.ceil(gpus / per_node)} --nproc-per-node {per_node} "
        f"--rdzv-backend c10d --rdzv-endpoint {MASTER} pretrain_gpt.py"
    )
    header = comment(f"{name or 'design'}: {design.model} on {gpus} {design.gpu}")
    return f"#!/bin/sh\n{header}exec {command([*start.split(), *arguments(design)], [MASTER])}"


def arguments(design: TrainingPoint) -> list[str]:
    """Return the options of Megatron-LM.

    Raises:
        UserError: Megatron-LM has no option for a feature of the design.
    """
    model = load_model(design.model)
    text = filled(
        OPTIONS,
        design=design,
        model=model,
        layout=_layout(model.layers, design.pp * design.chunks),
        hides_experts=_hides_experts(design),
    )
    return shlex.split(text)


def _layout(layers: int, number: int) -> str:
    """Return the pipeline layout in Megatron-LM's letters: embedding, layers by chunk, loss.

    >>> _layout(14, 4)
    'Et*3|t*4|t*4|t*3L'
    """
    chunks = [layers_of_chunk(chunk, number, layers, layers) for chunk in range(number)]
    return "E" + "|".join(f"t*{n}" if n else "" for n in chunks) + "L"


def _hides_experts(design: TrainingPoint) -> bool:
    """Return whether expert communication overlaps with another micro-batch."""
    cluster = cluster_for(design.cluster, load_gpu(design.gpu))
    crosses = design.ep * design.expert_tp > cluster.gpus_per_node
    return crosses and design.chunks > 1 and design.recompute != "full"
