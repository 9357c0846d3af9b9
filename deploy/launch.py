"""Command line of one replica, and the shell script that runs the command."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from deploy.quoting import command, comment, written
from simulators.catalog.engine import ServingEngine
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import UserError
from simulators.serving.adapters.fleet import slots_of
from simulators.serving.deployment import deployment_of
from simulators.serving.point import (
    BY_TOKEN,
    DRAFT,
    EAGLE,
    EAGLE3,
    FIXED,
    MEDUSA,
    ServingPoint,
)


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


HEADS = (MEDUSA, EAGLE, EAGLE3)
"""Speculation methods with a separately trained head."""

HEAD = "DRAFT_HEAD"
"""Placeholder in a command for the repository of the draft head."""


def drafts_model(point: ServingPoint) -> str:
    """Return the repository of the draft model; empty for n-gram lookup and MTP.

    Raises:
        UserError: the draft model's TOML file names no repository.
    """
    if point.speculation.method == DRAFT:
        return repository_of(load_model(point.speculation.draft_model))
    return HEAD if point.speculation.method in HEADS else ""


def method_of(point: ServingPoint, engine: str, known: Mapping[str, str]) -> str:
    """Return the engine's name of the speculation method.

    Raises:
        UserError: the engine does not support the method.
    """
    if point.speculation.method not in known:
        raise UserError(f"{engine} drafts by {', '.join(known)}, not by {point.speculation.method}")
    return known[point.speculation.method]


def adapters_kept(point: ServingPoint) -> int:
    """Return the number of adapters kept on a GPU, all of which a batch may use.

    Raises:
        UserError: no engine has the LoRA kernels of the design.
    """
    if point.lora.kernels == BY_TOKEN:
        raise UserError(
            f"lora.kernels {BY_TOKEN}: engines on offer multiply tokens of one adapter together"
        )
    return slots_of(point)


def drafts(point: ServingPoint) -> bool:
    """Return whether the design uses speculative decoding.

    Raises:
        UserError: no engine supports the rule for the number of draft tokens.
    """
    if point.speculation.method == NOTHING or point.speculation.num_draft_tokens == 0:
        return False
    if point.speculation.rule != FIXED:
        raise UserError(
            "no engine drafts by that rule: speculation.rule fixed, or speculation.disable_batch"
        )
    return True


def check_chain(point: ServingPoint, engine: str) -> None:
    """Refuse trees of drafts.

    Raises:
        UserError: drafts branch.
    """
    if point.speculation.topk > 1:
        raise UserError(f"{engine} exports no draft trees: speculation.topk 1, or sglang")


def repository_of(model: LanguageModel) -> str:
    """Return the Hugging Face repository named by the `source` of a model.

    Raises:
        UserError: no repository is named.
    """
    found = re.search(r"([\w.-]+/[\w.-]+) config\.json", model.source)
    if not found:
        raise UserError(
            f"the sheet of '{model.name}' names no repository; write one into its `source`, as in "
            '"meta-llama/Llama-2-70b-hf config.json"'
        )
    return found[1]


def scales(point: ServingPoint) -> bool:
    """Return whether a design uses autoscaling."""
    return 0 < point.autoscaling.min_replicas < point.replicas


def unscaled(point: ServingPoint) -> str:
    """Return a comment that autoscaling is not exported; empty without autoscaling."""
    if not scales(point):
        return ""
    return comment(
        f"priced with {point.autoscaling.min_replicas} to {point.replicas} replicas, as "
        "arrivals want: what starts and stops them is written by --target kubernetes alone"
    )


def launches(point: ServingPoint) -> bool:
    """Return whether kernels are launched one by one, without CUDA graphs."""
    return deployment_of(point).hardware.replica.runtime.is_launching


def pairs(options: Mapping[str, object], least: float = -math.inf) -> list[str]:
    """Return options with their values; numbers below `least` are the engine's default.

    >>> pairs({"--tp-size": 4, "--pp-size": 1}, least=2)
    ['--tp-size', '4']
    """
    found: list[str] = []
    for name, value in options.items():
        if not (isinstance(value, int) and value < least):
            found += [name, str(value)]
    return found


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
    return text + unscaled(point)
