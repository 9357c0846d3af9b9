"""Export training designs as torchrun commands of Megatron-LM or torchtitan.

`megatron.jinja` and `torchtitan.jinja` write the options, `training.toml` has facts of models that
no shape tells. Designs without an option are refused: schedules that a trainer lacks, unbalanced
rings, adapters. The first lines of a script list what the reader has to choose.
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
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.core.folder import read_toml
from simulators.training.job import hides_expert_exchange, modules_of, recompute_of
from simulators.training.metrics import job_of, plans_of
from simulators.training.point import TrainingPoint
from simulators.training.simulator import SIMULATOR
from simulators.training.stages import even_sizes

MEGATRON, TORCHTITAN = TARGETS = ("megatron", "torchtitan")
PROGRAMS = {MEGATRON: ["pretrain_gpt.py"], TORCHTITAN: ["-m", "torchtitan.train"]}
VENDORS = ("nvidia", "amd")
MASTER = "$MASTER_ADDR:29500"
"""Rendezvous of the ranks; the shell expands the address."""
MAX_QUEUES = 32
"""Largest `CUDA_DEVICE_MAX_CONNECTIONS` (CUDA C++ Programming Guide)."""
FACTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))
CHOSEN = {
    MEGATRON: "data (--data-path instead of --mock-data), tokenizer (--tokenizer-type, "
    "--tokenizer-model), learning rate (--lr, --lr-decay-style, --lr-warmup-iters), "
    "--moe-aux-loss-coeff and checkpoints (--save)",
    TORCHTITAN: "data (--dataloader), tokenizer (--hf_assets_path), learning rate "
    "(--optimizer.lr, --lr_scheduler) and checkpoints (--checkpoint)",
}
"""Options that no design tells, by trainer."""


class TrainingDeployments:
    """Writes deployments for `sweeper export`."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the script that starts a design; a comment contains `name`.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: unknown target.
            UserError: the trainer has no option for a feature of the design.
        """
        target = target or MEGATRON
        if target not in TARGETS:
            raise UnknownNameError("target", target, TARGETS)
        design = TrainingPoint(**point)
        [answer] = SIMULATOR.evaluate(batch_of(TrainingPoint, vars(design))).to_pylist()
        if answer["status"] == "infeasible":
            reason, _, words = answer["reason"].partition(": ")
            raise Infeasible(reason, words)
        return script(replace(design, tokens=answer["run_tokens"]), name, target)


DEPLOYMENTS = TrainingDeployments()


def script(design: TrainingPoint, name: str = "", target: str = MEGATRON) -> str:
    """Return the shell script of a design, one option per line.

    Raises:
        UserError: the trainer has no option for a feature of the design.
    """
    gpus = design.tp * design.pp * design.cp * design.dp
    per_node = min(gpus, cluster_for(design.cluster, load_gpu(design.gpu)).gpus_per_node)
    # Tensor and context parallelism need one queue, so that messages start in the order of the
    # kernels around them; FSDP and overlapped expert messages need many.
    has_many = _hides_experts(design) or design.zero >= 2
    queues = f"CUDA_DEVICE_MAX_CONNECTIONS={MAX_QUEUES if has_many else 1}"
    start = (
        f"env {queues} torchrun --nnodes {math.ceil(gpus / per_node)} --nproc-per-node {per_node} "
        f"--rdzv-backend c10d --rdzv-endpoint {MASTER}"
    )
    words = [*start.split(), *PROGRAMS[target], *arguments(design, target)]
    lines = [f"{name or 'design'}: {design.model} on {gpus} {design.gpu}"]
    lines.append(f"choose: {CHOSEN[target]}")
    if missing := unknown_facts(design) if target == MEGATRON else ():
        lines.append(f"not known of {design.model}, complete by hand: {', '.join(missing)}")
    header = "".join(map(comment, lines))
    return f"#!/bin/sh\n{header}exec {command(words, [MASTER])}"


def arguments(design: TrainingPoint, target: str = MEGATRON) -> list[str]:
    """Return the options of a trainer.

    Raises:
        UserError: the trainer has no option for a feature of the design.
    """
    model, gpu = load_model(design.model), load_gpu(design.gpu)
    if gpu.vendor not in VENDORS:
        raise UserError(f"{target} is exported for GPUs of NVIDIA and AMD, not for {gpu.name}")
    text = filled(
        Path(__file__).with_name(f"{target}.jinja"),
        design=design,
        model=model,
        modules=modules_of(recompute_of(design.recompute)),
        is_blackwell=gpu.architecture == "blackwell",
        facts=facts_of(model.name),
        config=FACTS["torchtitan"].get(model.name),
        layout=_layout(model.layers, design.pp * design.chunks, design.mtp_layers),
        hides_experts=_hides_experts(design),
    )
    return shlex.split(text)


def facts_of(model: str) -> dict[str, Any]:
    """Return the facts of a model that no shape tells; None where they are unknown.

    >>> facts_of("llama3_1_8b")["rotary_base"], facts_of("/my/config.json")["rotary_base"]
    (500000, None)
    """
    found = {}
    for name in (table for table in FACTS if table != TORCHTITAN):
        known = [start for start in FACTS[name] if model.startswith(start)]
        found[name] = FACTS[name][max(known, key=len)] if known else None
    return found


def unknown_facts(design: TrainingPoint) -> tuple[str, ...]:
    """Return Megatron-LM's options whose values are not known of a model."""
    model = load_model(design.model)
    facts = facts_of(model.name)
    needed = {"norm_epsilon": "--norm-epsilon"}
    needed |= {} if model.learned_positions else {"rotary_base": "--rotary-base"}
    needed |= {"routers": "--moe-router-score-function"} if model.experts else {}
    return tuple(option for name, option in needed.items() if facts[name] is None)


def _layout(layers: int, number: int, mtp: int = 0) -> str:
    """Return the pipeline layout in Megatron-LM's letters: embedding, layers by chunk, MTP, loss.

    >>> _layout(14, 4)
    'Et*3|t*4|t*4|t*3L'
    """
    chunks = (f"t*{n}" if n else "" for n in even_sizes(layers, number))
    return "E" + "|".join(chunks) + "m" * mtp + "L"


def _hides_experts(design: TrainingPoint) -> bool:
    """Return whether expert communication overlaps with another micro-batch."""
    job, plans = job_of(vars(design)), plans_of(batch_of(TrainingPoint, vars(design)))
    return job.ep * job.expert_tp > 1 and bool(hides_expert_exchange(job, plans)[0])
