"""NVIDIA Dynamo: a graph of a frontend and workers, each of which may span nodes."""

from __future__ import annotations

import json
import math

from deploy.launch import Launch
from deploy.orchestrators._gpu_nodes import node_lines, notes, resource, token_lines
from deploy.quoting import label
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

VERSION = "1.0.2"
"""Of the runtimes' images: Dynamo documentation, release artifacts."""


def manifest(launch: Launch, point: ServingPoint) -> str:
    """Return the manifest.

    Raises:
        UserError: Dynamo's workers of this engine cannot be told so.
    """
    engine = launch.engine
    if launch.file:
        raise UserError(
            f"Dynamo's {engine.title or engine.name} workers take their engine's settings in a "
            f"file of their own; use --target {engine.name} or kubernetes"
        )
    if not engine.dynamo_model:
        raise UserError(f"Dynamo has no workers of {engine.title or engine.name}")
    name = label(point.model)
    image = json.dumps(f"nvcr.io/nvidia/ai-dynamo/{engine.name}-runtime:{VERSION}")
    args = [engine.dynamo_model, launch.repository, *launch.options]
    spread = f"\n      multinode:\n        nodeCount: {launch.nodes}" if launch.nodes > 1 else ""
    return f"""\
{notes(point.gpu)}apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata:
  name: {name}
spec:
  components:
    - name: Frontend
      type: frontend
      replicas: 1
      podTemplate:
        spec:
          containers:
            - name: main
              image: {image}
    - name: worker
      type: worker
      replicas: {point.replicas}{spread}
      podTemplate:
        spec:
{node_lines(point.gpu, 10)}\
          containers:
            - name: main
              image: {image}
{token_lines(14)}\
              command: {json.dumps(["python3", "-m", f"dynamo.{engine.name}"])}
              args: {json.dumps(args)}
              resources:
                limits:
                  {resource(point.gpu)}: "{math.ceil(launch.gpus / launch.nodes)}"
"""
