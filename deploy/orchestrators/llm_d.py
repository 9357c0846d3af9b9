"""llm-d: values of its Helm chart `llm-d-modelservice`, for two pools of vLLM workers.

The chart writes the command `vllm serve MODEL --port`, with the degrees of parallelism, and a
routing sidecar next to decode workers. Gateway and scheduler, which choose the pods of a request,
are installed by llm-d's guide to disaggregation (github.com/llm-d/llm-d,
guides/pd-disaggregation); its pool of endpoints finds pods by their labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from deploy.launch import EngineCommand
from deploy.orchestrators import _manifests
from deploy.quoting import label
from simulators.catalog.model import load_model
from simulators.core.errors import UserError
from simulators.serving.point import ServingPoint

CHART = "v0.4.0"
"""Version of llm-d-incubation/llm-d-modelservice."""

CHECKPOINT_BYTES = 2.2
"""Disk bytes per parameter of a checkpoint: 16 bits at most, and further files."""

CHART_OPTIONS = ("--tensor-parallel-size", "--data-parallel-size")
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


def pools(parts: Sequence[_manifests.Pool], point: ServingPoint) -> str:
    """Return the chart's values for a design with prefill and decode pools.

    Raises:
        UserError: llm-d's chart has no option for the design, or the KV transfer is unsupported.
    """
    _manifests.check_pools(parts, point, "llm-d")
    if point.pp > 1:
        raise UserError(
            f"pp {point.pp}: llm-d's chart counts the GPUs of a worker by tensor and data "
            "parallelism alone; choose pp 1, or --target dynamo"
        )
    for _, part in parts:
        if _manifests.resource(part.gpu) != _manifests.resource("h100_sxm"):
            raise UserError(f"llm-d's vLLM image does not support {part.gpu}")
    model, worker = _manifests.documents("llm_d")
    repository, name = parts[0][0].repository, label(point.model)
    size = math.ceil(CHECKPOINT_BYTES * load_model(point.model).parameters / 2**30)
    text = _manifests.rendered(
        model, repository=repository, uri=f"hf://{repository}", size=f"{size}Gi", name=name
    )
    for role, (launch, part) in zip(_manifests.ROLES, parts, strict=True):
        text += _manifests.rendered(
            worker,
            role=role,
            replicas=part.replicas,
            tp=part.tp,
            attention_dp=part.attention_dp,
            node_selector=_manifests.node_selector(part.gpu),
            args=[*_without(launch.options, CHART_OPTIONS), *launch.engine.kv_connector],
        )
    nodes = [remark for _, part in parts for remark in _manifests.node_remarks(part.gpu)]
    return _manifests.comments([*_remarks(name), *_manifests.kv_remarks(point), *nodes]) + text


def _remarks(name: str) -> Iterator[str]:
    """Yield the steps that install the chart."""
    yield "llm-d's guide pd-disaggregation first: gateway, and scheduler for disaggregated prefill"
    token = "kubectl create secret generic llm-d-hf-token --from-literal=HF_TOKEN=$HF_TOKEN"  # noqa: S105
    yield f"gated models need a token: {token}"
    yield "helm repo add llm-d https://llm-d-incubation.github.io/llm-d-modelservice/"
    yield f"helm install {name} llm-d/llm-d-modelservice --version {CHART} -f FILE"


def _without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the words of a command without some options and their values.

    >>> _without(["--a", "1", "--b", "2"], ["--a"])
    ['--b', '2']
    """
    values = {i + 1 for i, word in enumerate(words) if word in options}
    return [w for i, w in enumerate(words) if w not in options and i not in values]
