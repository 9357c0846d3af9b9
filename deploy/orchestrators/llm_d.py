"""llm-d: values of its Helm chart `llm-d-modelservice`, for two pools of vLLM workers.

The chart writes the command `vllm serve MODEL --port`, with the degrees of parallelism, and a
routing sidecar next to decode workers. Gateway and scheduler, which choose the pods of a request,
are installed by llm-d's guide to disaggregation (github.com/llm-d/llm-d,
guides/pd-disaggregation); its pool of endpoints finds pods by their labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from deploy.launch import EngineCommand
from deploy.orchestrators import _two_pools
from deploy.orchestrators._gpu_nodes import node_lines, resource
from deploy.quoting import comment, label
from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

CHART, IMAGE = "v0.4.0", "ghcr.io/llm-d/llm-d-cuda:v0.4.0"
"""Versions of llm-d-incubation/llm-d-modelservice, and of llm-d's vLLM."""

SECRET, KEY = "llm-d-hf-token", "HF_TOKEN"
"""Secret and key with a Hugging Face token, as in the guide."""

NUMBER_BYTES = 2.2
"""Disk bytes per parameter of a checkpoint: 16 bits at most, and further files."""

GUIDE = "pd-disaggregation"

PARALLEL = ("--tensor-parallel-size", "--data-parallel-size")
"""Options that the chart sets."""


def manifest(_launch: EngineCommand, _point: ServingPoint) -> str:
    """Refuse designs of one pool.

    Raises:
        UserError: always.
    """
    raise UserError(
        "llm_d supports only separate pools (pools.prefill_gpus, pools.decode_gpus); for one "
        "pool use --target kubernetes or dynamo"
    )


def pools(parts: Sequence[tuple[EngineCommand, ServingPoint]], point: ServingPoint) -> str:
    """Return the chart's values for a design with prefill and decode pools.

    Raises:
        UserError: llm-d's chart has no option for the design, or the KV transfer is unsupported.
    """
    _two_pools.check(parts, point, "llm-d")
    if point.pp > 1:
        raise UserError(
            f"pp {point.pp}: llm-d's chart counts the GPUs of a worker by tensor and data "
            "parallelism alone; choose pp 1, or --target dynamo"
        )
    for _, part in parts:
        if resource(part.gpu) != resource("h100_sxm"):
            raise UserError(f"llm-d's vLLM image does not support {part.gpu}")
    repository = parts[0][0].repository
    workers = zip(_two_pools.ROLES, parts, strict=True)
    return f"""\
{"".join(map(comment, _remarks(point)))}\
multinode: false
modelArtifacts:
  name: {json.dumps(repository)}
  uri: {json.dumps(f"hf://{repository}")}
  size: {math.ceil(NUMBER_BYTES * load_model(point.model).parameters / 2**30)}Gi
  authSecretName: {SECRET}
  labels:
    llm-d.ai/inference-serving: "true"
    llm-d.ai/guide: {GUIDE}
    llm-d.ai/model: {label(point.model)}
routing:
  servicePort: 8000
  proxy:
    connector: nixlv2
    secure: false
accelerator:
  type: nvidia
{"".join(_worker(role, launch, part) for role, (launch, part) in workers)}"""


def _remarks(point: ServingPoint) -> Iterator[str]:
    yield f"llm-d's guide {GUIDE} first: gateway, and scheduler for disaggregated prefill"
    yield f"gated models need a token: kubectl create secret generic {SECRET} --from-literal={KEY}=$HF_TOKEN"  # noqa: E501 - one command
    yield "helm repo add llm-d https://llm-d-incubation.github.io/llm-d-modelservice/"
    yield f"helm install {label(point.model)} llm-d/llm-d-modelservice --version {CHART} -f FILE"
    yield from _two_pools.remarks(point)


def _worker(role: str, launch: EngineCommand, point: ServingPoint) -> str:
    """Return the lines of one pool."""
    args = [*_without(launch.options, PARALLEL), *launch.engine.kv_connector]
    return f"""\
{role}:
  create: true
  replicas: {point.replicas}
  parallelism:
    tensor: {point.tp}
    data: {point.attention_dp}
    dataLocal: {point.attention_dp}
{node_lines(point.gpu, 2)}\
  containers:
    - name: vllm
      image: {IMAGE}
      modelCommand: vllmServe
      args: {json.dumps(args)}
      env:
        - name: VLLM_NIXL_SIDE_CHANNEL_HOST
          valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
      mountModelVolume: true
      volumeMounts:
        - {{name: shm, mountPath: /dev/shm}}
  volumes:
    - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}
"""


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command without some options and their values.

    >>> _without(["--a", "1", "--b", "2"], ["--a"])
    ['--b', '2']
    """
    values = {i + 1 for i, word in enumerate(words) if word in options}
    return [w for i, w in enumerate(words) if w not in options and i not in values]
