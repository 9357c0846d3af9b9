"""Command line of one replica, and the shell script that runs the command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.quoting import command, comment, written
from simulators.catalog.engine import ServingEngine
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import UserError
from simulators.serving.adapters import slots_of
from simulators.serving.deployment import deployment_of
from simulators.serving.point import (
    BY_TOKEN,
    CACHED,
    DRAFT,
    EAGLE,
    EAGLE3,
    FIXED,
    MEDUSA,
    ServingPoint,
)

HEADS = (MEDUSA, EAGLE, EAGLE3)
"""Speculation methods with a separately trained head."""

HEAD = "DRAFT_HEAD"
"""Placeholder in a command for the repository of the draft head."""


@dataclass(frozen=True)
class EngineCommand:
    """Command of one replica.

    `options` follow the model; `file` is the content of `engine.yaml`, or empty.
    """

    engine: ServingEngine
    repository: str
    options: tuple[str, ...]
    nodes: int
    gpus: int
    file: str = ""

    @property
    def command(self) -> list[str]:
        """All the words of the command."""
        return [*self.engine.command, self.repository, *self.options]


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding in the words of an engine."""

    method: str
    model: str  # repository of the draft model; empty for n-gram lookup and MTP


def speculation_of(
    point: ServingPoint, engine: str, methods: Mapping[str, str], *, has_trees: bool = False
) -> Speculation | None:
    """Return the speculative decoding of a design, or None without speculation.

    Args:
        point: the design.
        engine: name of the engine, for messages.
        methods: the engine's names of the methods.
        has_trees: whether the engine supports trees of draft tokens.

    Raises:
        UserError: the engine has no option for the design, or the TOML file of the draft model
            names no repository.
    """
    asked = point.speculation
    if asked.method == NOTHING or asked.num_draft_tokens == 0:
        return None
    if asked.rule != FIXED:
        raise UserError(
            "no engine drafts by that rule: speculation.rule fixed, or speculation.disable_batch"
        )
    if asked.method not in methods:
        raise UserError(f"{engine} drafts by {', '.join(methods)}, not by {asked.method}")
    if asked.topk > 1 and not has_trees:
        raise UserError(f"{engine} exports no draft trees: speculation.topk 1, or sglang")
    model = HEAD if asked.method in HEADS else ""
    if asked.method == DRAFT:
        model = repository_of(load_model(asked.draft_model))
    return Speculation(methods[asked.method], model)


def adapter_slots(point: ServingPoint) -> int:
    """Return the number of adapters kept on a GPU, all of which a batch may use.

    Raises:
        UserError: no engine has the LoRA kernels of the design.
    """
    if point.lora.kernels == BY_TOKEN:
        raise UserError(
            f"lora.kernels {BY_TOKEN}: engines on offer multiply tokens of one adapter together"
        )
    return slots_of(point)


def repository_of(model: LanguageModel) -> str:
    """Return the Hugging Face repository named by the `source` of a model.

    Raises:
        UserError: no repository is named.
    """
    found = re.search(r"([\w.-]+/[\w.-]+) config\.json", model.source)
    if not found:
        raise UserError(
            f"the TOML file of '{model.name}' names no repository; write one into its `source`, as "
            'in "meta-llama/Llama-2-70b-hf config.json"'
        )
    return found[1]


def has_prefix_cache(point: ServingPoint) -> bool:
    """Return whether the engine keeps the KV blocks of finished or preempted requests."""
    return point.cache.prefix_caching or point.cache.preemption == CACHED


def has_autoscaling(point: ServingPoint) -> bool:
    """Return whether the number of replicas of a design follows the load."""
    return 0 < point.autoscaling.min_replicas < point.replicas


def autoscaling_comment(point: ServingPoint) -> str:
    """Return a comment that autoscaling is not exported; empty without autoscaling."""
    if not has_autoscaling(point):
        return ""
    return comment(
        f"priced with {point.autoscaling.min_replicas} to {point.replicas} replicas, as the load "
        "requires; the autoscaler is written by --target kubernetes alone"
    )


def launches_kernels(point: ServingPoint) -> bool:
    """Return whether kernels are launched one by one, without CUDA graphs."""
    return deployment_of(point).hardware.replica.runtime.is_launching


def script(launch: EngineCommand, point: ServingPoint) -> str:
    """Return the command as shell lines, one option per line."""
    port, text = launch.engine.port, command(launch.command)
    if launch.file:
        text = f"{written('engine.yaml', launch.file)}{text}"
    if launch.nodes > 1:
        text = f"# one replica spans {launch.nodes} nodes: join them first (Ray or MPI)\n{text}"
    if point.replicas > 1:
        text += comment(
            f"{point.replicas} replicas: run it once per replica with --port {port}, "
            f"{port + 1} ..., behind a router that sends requests by {point.router}"
        )
    return text + autoscaling_comment(point)
