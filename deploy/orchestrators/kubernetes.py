"""Kubernetes: a Deployment with a pod per replica, a Service and an optional autoscaler.

A horizontal autoscaler (`autoscaling/v2`) with a pod metric runs `ceil(sum of the metric /
averageValue)` pods. With requests per second, the simulator uses the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from deploy.launch import EngineCommand, has_autoscaling
from deploy.orchestrators import _manifests
from deploy.quoting import label
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

METRIC = "requests_per_second"
"""Name of the pod metric, which the cluster's metrics adapter must provide."""

MAX_WINDOW_S = 3600
"""Longest stabilisation window in seconds."""

SYNC_PERIOD_S = 15.0
"""Default period of a cluster's autoscaler."""

ANY_HOST = "0.0.0.0"  # noqa: S104 - within a pod; the service controls access


def manifest(launch: EngineCommand, point: ServingPoint) -> str:
    """Return the manifests.

    Raises:
        UserError: a replica needs more than a node, or the autoscaler cannot wait so long.
    """
    if launch.nodes > 1:
        raise UserError(
            f"one replica spans {launch.nodes} nodes, which a Kubernetes Deployment cannot do; "
            "use --target dynamo, or a design whose tp * pp fits in a node"
        )
    deployment, service, config_map, autoscaler = _manifests.documents("kubernetes")
    parts, remarks = [deployment, service], [*_manifests.gpu_remarks(point.gpu)]
    name, port, scaling = label(point.model), launch.engine.port, point.autoscaling
    words = [w.replace("engine.yaml", "/etc/engine/engine.yaml") for w in launch.command]
    volume = mount = None
    if launch.file:
        parts.append(config_map)
        volume = {"name": "engine", "configMap": {"name": f"{name}-engine"}}
        mount = {"name": "engine", "mountPath": "/etc/engine"}
    if has_autoscaling(point):
        parts.append(autoscaler)
        remarks += _scaling_remarks(point)
    return _manifests.comments(remarks) + _manifests.rendered(
        "---\n".join(parts),
        name=name,
        replicas=scaling.min_replicas if has_autoscaling(point) else point.replicas,
        max_replicas=point.replicas,
        node_selector=_manifests.node_selector(point.gpu),
        engine=launch.engine.name,
        image=launch.engine.image,
        command=[*words, "--port", str(port), "--host", ANY_HOST],
        port=port,
        gpus={_manifests.resource(point.gpu): launch.gpus},
        mount=mount,
        volume=volume,
        config_map=f"{name}-engine",
        file=launch.file,
        metric=METRIC,
        requests_per_pod=f"{round(1000 * scaling.replica_qps)}m",
        scale_down_s=math.ceil(scaling.scale_down_s),
    )


def _scaling_remarks(point: ServingPoint) -> Iterator[str]:
    """Yield remarks on the autoscaler. Raises UserError if its window would be too long."""
    scaling = point.autoscaling
    if scaling.scale_down_s > MAX_WINDOW_S:
        raise UserError(
            f"autoscaling.scale_down_s {scaling.scale_down_s:g}: an autoscaler of Kubernetes keeps "
            f"replicas for {MAX_WINDOW_S} s at most"
        )
    yield (
        f"{METRIC} of each pod has to come from the cluster's metrics adapter: the rate of the "
        "engine's counter of requests"
    )
    if scaling.interval_s != SYNC_PERIOD_S:
        yield (
            f"priced with an autoscaler period of {scaling.interval_s:g} s: set "
            "--horizontal-pod-autoscaler-sync-period"
        )
