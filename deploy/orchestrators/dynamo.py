"""NVIDIA Dynamo: a graph of a frontend and workers, each of which may span nodes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from deploy.launch import Launch, unscaled
from deploy.orchestrators._gpu_nodes import node_lines, notes, resource, token_lines
from deploy.quoting import comment, label
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.serving.point import AUTO, BY_LAYER, INFINITE, NVLINK, ServingPoint

VERSION = "1.0.2"
"""Of the runtimes' images: Dynamo documentation, release artifacts."""

ROLES = ("prefill", "decode")
"""Types of the workers of two pools, and what `--disaggregation-mode` of these is (since 1.0)."""


def manifest(launch: Launch, point: ServingPoint) -> str:
    """Return the manifest.

    Raises:
        UserError: Dynamo's workers of this engine cannot be told so.
    """
    return notes(point.gpu) + _graph(_worker("worker", launch, point), launch, point)


def pools(parts: Sequence[tuple[Launch, ServingPoint]], point: ServingPoint) -> str:
    """Return the manifest of a design with two pools, given each: what reads prompts comes first.

    Raises:
        UserError: Dynamo's workers of this engine cannot be told so, or KV caches move otherwise.
    """
    _check_transfers(point)
    workers = ""
    for role, (launch, part) in zip(ROLES, parts, strict=True):
        engine = launch.engine
        if not engine.dynamo_pools:
            raise UserError(
                f"prefill_gpus, decode_gpus: separate pools of {engine.title or engine.name} "
                "workers are not written here, only those of vLLM"
            )
        if launch.nodes > 1:
            raise UserError(
                f"prefill_gpus, decode_gpus: a replica that does {role} spans {launch.nodes} "
                "nodes; Dynamo's separate pools are written here for replicas within a node"
            )
        told = ("--disaggregation-mode", role, *engine.dynamo_pools)
        workers += _worker(role, launch, part, told)
    said = dict.fromkeys([*(notes(part.gpu) for _, part in parts), *map(comment, _remarks(point))])
    return "".join(said) + _graph(workers, parts[0][0], point)


def _check_transfers(point: ServingPoint) -> None:
    """Refuse ways of KV caches that Dynamo's guides to disaggregated serving exclude."""
    if point.kv_link == INFINITE:
        raise UserError("kv_link infinite: a what-if cannot be deployed; choose rdma")
    if point.kv_link == NVLINK:
        raise UserError("kv_link nvlink: workers in pods of their own share no NVLink; choose rdma")
    if point.kv_transfer == BY_LAYER:
        raise UserError(
            "kv_transfer by_layer: Dynamo moves a KV cache once its prompt is read; choose serial"
        )


def _remarks(point: ServingPoint) -> Iterator[str]:
    """Yield what the ways of KV caches need, and where the design was priced with others."""
    yield "KV caches move by RDMA only if pods are given their cluster's RDMA devices (as rdma/ib)"
    gpus = point.replicas * (point.prefill_gpus + point.decode_gpus)
    if (
        point.kv_link == AUTO
        and gpus <= cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node
    ):
        yield "priced with NVLink between the pools, which pods do not share: see kv_link rdma"


def _worker(role: str, launch: Launch, point: ServingPoint, told: Sequence[str] = ()) -> str:
    """Return the lines of one kind of workers."""
    args = [launch.engine.dynamo_model, launch.repository, *launch.options, *told]
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


def _graph(workers: str, launch: Launch, point: ServingPoint) -> str:
    """Return the graph of a frontend and the lines of its workers."""
    engine = launch.engine
    if launch.file:
        raise UserError(
            f"Dynamo's {engine.title or engine.name} workers take their engine's settings in a "
            f"file of their own; use --target {engine.name} or kubernetes"
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


def _image(launch: Launch) -> str:
    return json.dumps(f"nvcr.io/nvidia/ai-dynamo/{launch.engine.name}-runtime:{VERSION}")
