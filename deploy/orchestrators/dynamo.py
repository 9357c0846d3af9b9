"""NVIDIA Dynamo: a graph of a frontend and workers, each of which may span nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from deploy.launch import EngineCommand, autoscaling_comment
from deploy.orchestrators import _manifests
from deploy.quoting import label
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

VERSION = "1.0.2"
"""Tag of the runtime images: Dynamo documentation, release artifacts."""


def manifest(launch: EngineCommand, point: ServingPoint) -> str:
    """Return the manifest.

    Raises:
        UserError: Dynamo's workers of this engine have no option for the design.
    """
    return _manifests.comments(_manifests.gpu_remarks(point.gpu)) + _graph(
        [("worker", launch, point, [])], point
    )


def pools(parts: Sequence[_manifests.Pool], point: ServingPoint) -> str:
    """Return the manifest of a design with prefill and decode pools.

    Raises:
        UserError: Dynamo's workers have no option for the design or its KV transfer.
    """
    _manifests.check_pools(parts, point, "Dynamo")
    workers = [
        (role, launch, part, ["--disaggregation-mode", role, *launch.engine.kv_connector])
        for role, (launch, part) in zip(_manifests.ROLES, parts, strict=True)
    ]
    remarks = [remark for _, part in parts for remark in _manifests.gpu_remarks(part.gpu)]
    return _manifests.comments([*remarks, *_manifests.kv_remarks(point)]) + _graph(workers, point)


def _graph(
    workers: Sequence[tuple[str, EngineCommand, ServingPoint, list[str]]], point: ServingPoint
) -> str:
    """Return the graph of a frontend and workers: role, command, design and further options."""
    engine = workers[0][1].engine
    if workers[0][1].file:
        raise UserError(
            f"Dynamo's {engine.label} workers read engine settings from a file, "
            f"which is not written here; use --target {engine.name} or kubernetes"
        )
    if not engine.dynamo_model:
        raise UserError(f"Dynamo has no workers of {engine.label}")
    graph, worker = _manifests.documents("dynamo")
    image = f"nvcr.io/nvidia/ai-dynamo/{engine.name}-runtime:{VERSION}"
    text = autoscaling_comment(point) + _manifests.rendered(
        graph, name=label(point.model), image=image
    )
    for role, launch, part, extra in workers:
        text += _manifests.rendered(
            worker,
            role=role,
            replicas=part.replicas,
            multinode={"nodeCount": launch.nodes} if launch.nodes > 1 else None,
            node_selector=_manifests.node_selector(part.gpu),
            image=image,
            command=["python3", "-m", f"dynamo.{engine.name}"],
            args=[engine.dynamo_model, launch.repository, *launch.options, *extra],
            gpus={_manifests.resource(part.gpu): str(math.ceil(launch.gpus / launch.nodes))},
        )
    return text
