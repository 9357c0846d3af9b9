"""NVIDIA Dynamo: a graph of a frontend and workers, each of which may span nodes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from deploy.launch import EngineCommand, unscaled
from deploy.orchestrators._gpu_nodes import node_lines, notes, resource, token_lines
from deploy.orchestrators._two_pools import ROLES, check, remarks
from deploy.quoting import comment, label
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

VERSION = "1.0.2"
"""Tag of the runtime images: Dynamo documentation, release artifacts."""


def manifest(launch: EngineCommand, point: ServingPoint) -> str:
    """Return the manifest.

    Raises:
        UserError: Dynamo's workers of this engine have no option for the design.
    """
    return notes(point.gpu) + _graph(_worker("worker", launch, point), launch, point)


def pools(parts: Sequence[tuple[EngineCommand, ServingPoint]], point: ServingPoint) -> str:
    """Return the manifest of a design with prefill and decode pools.

    Raises:
        UserError: Dynamo's workers have no option for the design or its KV transfer.
    """
    check(parts, point, "Dynamo")
    workers = ""
    for role, (launch, part) in zip(ROLES, parts, strict=True):
        extra = ("--disaggregation-mode", role, *launch.engine.kv_connector)
        workers += _worker(role, launch, part, extra)
    said = dict.fromkeys([*(notes(part.gpu) for _, part in parts), *map(comment, remarks(point))])
    return "".join(said) + _graph(workers, parts[0][0], point)


def _worker(
    role: str, launch: EngineCommand, point: ServingPoint, extra: Sequence[str] = ()
) -> str:
    """Return the lines of one kind of workers."""
    args = [launch.engine.dynamo_model, launch.repository, *launch.options, *extra]
    spread = f"\n      multinode:\n        nodeCount: {launch.nodes}" if launch.nodes > 1 else ""
    return f"""\
    - name: {role}
      type: {role}
      replicas: {point.replicas}{spread}
      podTemplate:
        spec:
{node_lines(point.gpu, 10)}\
          containers:
            - name: main
              image: {_image(launch)}
{token_lines(14)}\
              command: {json.dumps(["python3", "-m", f"dynamo.{launch.engine.name}"])}
              args: {json.dumps(args)}
              resources:
                limits:
                  {resource(point.gpu)}: "{math.ceil(launch.gpus / launch.nodes)}"
"""


def _graph(workers: str, launch: EngineCommand, point: ServingPoint) -> str:
    """Return the graph of a frontend and the lines of its workers."""
    engine = launch.engine
    if launch.file:
        raise UserError(
            f"Dynamo's {engine.title or engine.name} workers read engine settings from a file, "
            f"which is not written here; use --target {engine.name} or kubernetes"
        )
    if not engine.dynamo_model:
        raise UserError(f"Dynamo has no workers of {engine.title or engine.name}")
    return f"""\
{unscaled(point)}apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata:
  name: {label(point.model)}
spec:
  components:
    - name: Frontend
      type: frontend
      replicas: 1
      podTemplate:
        spec:
          containers:
            - name: main
              image: {_image(launch)}
{workers}"""


def _image(launch: EngineCommand) -> str:
    return json.dumps(f"nvcr.io/nvidia/ai-dynamo/{launch.engine.name}-runtime:{VERSION}")
