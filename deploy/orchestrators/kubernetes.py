"""Kubernetes: a Deployment with a pod per replica, a Service and an optional autoscaler.

A horizontal autoscaler (`autoscaling/v2`) with a pod metric runs `ceil(sum of the metric /
averageValue)` pods. With requests per second, the simulator uses the same rule.
"""

from __future__ import annotations

import json
import math

from deploy.launch import EngineCommand, scales
from deploy.orchestrators._gpu_nodes import node_lines, notes, resource, token_lines
from deploy.quoting import comment, label
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

METRIC = "requests_per_second"
"""Name of the pod metric, which the cluster's metrics adapter must provide."""

MOST_KEPT_S = 3600
"""Longest stabilisation window in seconds."""

_LEAST_S = 1
"""Pods per policy period: no limit in practice."""

LOOKS_S = 15.0
"""Default period of a cluster's autoscaler."""

ANY_HOST = "0.0.0.0"  # noqa: S104 - within a pod; the service controls access


def manifest(launch: EngineCommand, point: ServingPoint) -> str:
    """Return the manifests.

    Raises:
        UserError: a replica needs more than a node.
    """
    if launch.nodes > 1:
        raise UserError(
            f"one replica spans {launch.nodes} nodes, which a Kubernetes Deployment cannot do; "
            "use --target dynamo, or a design whose tp * pp fits in a node"
        )
    name, port = label(point.model), launch.engine.port
    volumes, mounts, extra = _volumes(launch, name)
    words = [w.replace("engine.yaml", "/etc/engine/engine.yaml") for w in launch.command]
    return f"""\
{notes(point.gpu)}apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {point.autoscaling.min_replicas if scales(point) else point.replicas}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
{node_lines(point.gpu, 6)}\
      containers:
        - name: {json.dumps(launch.engine.name)}
          image: {json.dumps(launch.engine.image)}
          command: {json.dumps([*words, "--port", str(port), "--host", ANY_HOST])}
{token_lines(10)}\
          ports:
            - containerPort: {port}
          readinessProbe:
            httpGet: {{path: /health, port: {port}}}
            periodSeconds: 10
            failureThreshold: 180
          resources:
            limits:
              {resource(point.gpu)}: {launch.gpus}
          volumeMounts:
            {mounts}
      volumes:
        {volumes}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}}}
  ports:
    - port: 80
      targetPort: {port}
{extra}{_autoscaler(point, name) if scales(point) else ""}"""


def _autoscaler(point: ServingPoint, name: str) -> str:
    """Return the manifest of the autoscaler."""
    if point.autoscaling.scale_down_s > MOST_KEPT_S:
        raise UserError(
            f"autoscaling.scale_down_s {point.autoscaling.scale_down_s:g}: an autoscaler of "
            f"Kubernetes keeps replicas for {MOST_KEPT_S} s at most"
        )
    said = comment(
        f"{METRIC} of each pod has to come from the cluster's metrics adapter: the rate of the "
        "engine's counter of requests"
    )
    if point.autoscaling.interval_s != LOOKS_S:
        period = "--horizontal-pod-autoscaler-sync-period"
        said += comment(f"priced with looks each {point.autoscaling.interval_s:g} s: its {period}")
    return f"""\
---
{said}apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {name}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}
  minReplicas: {point.autoscaling.min_replicas}
  maxReplicas: {point.replicas}
  metrics:
    - type: Pods
      pods:
        metric: {{name: {METRIC}}}
        target: {{type: AverageValue, averageValue: {round(1000 * point.autoscaling.replica_qps)}m}}
  behavior:
    scaleUp:
      policies: [{{type: Pods, value: {point.replicas}, periodSeconds: {_LEAST_S}}}]
    scaleDown:
      stabilizationWindowSeconds: {math.ceil(point.autoscaling.scale_down_s)}
      policies: [{{type: Pods, value: {point.replicas}, periodSeconds: {_LEAST_S}}}]
"""


def _volumes(launch: EngineCommand, name: str) -> tuple[str, str, str]:
    """Return a pod's volumes, mount points and the manifest of the config map."""
    volumes = "- {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}"
    mounts = "- {name: shm, mountPath: /dev/shm}"
    if not launch.file:
        return volumes, mounts, ""
    volumes += f"\n        - {{name: engine, configMap: {{name: {name}-engine}}}}"
    mounts += "\n            - {name: engine, mountPath: /etc/engine}"
    indented = "".join(f"    {line}\n" for line in launch.file.splitlines())
    extra = (
        f"---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}-engine\n"
        f"data:\n  engine.yaml: |\n{indented}"
    )
    return volumes, mounts, extra
