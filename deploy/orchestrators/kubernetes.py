"""Kubernetes: a Deployment of as many pods as replicas, and a Service before them."""

from __future__ import annotations

import json

from deploy.launch import Launch
from deploy.orchestrators._gpu_nodes import node_lines, notes, resource, token_lines
from deploy.quoting import label
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

ANY_HOST = "0.0.0.0"  # noqa: S104 - within a pod, whose service decides who may come


def manifest(launch: Launch, point: ServingPoint) -> str:
    """Return the manifests.

    Raises:
        UserError: a replica needs more than a node.
    """
    if launch.nodes > 1:
        raise UserError(
            f"one replica spans {launch.nodes} nodes, which a Kubernetes Deployment cannot hold; "
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
  replicas: {point.replicas}
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
{extra}"""


def _volumes(launch: Launch, name: str) -> tuple[str, str, str]:
    """Return a pod's volumes, where they are mounted, and the manifest of what one holds."""
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
