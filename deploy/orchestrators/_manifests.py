"""Manifest templates, GPU resources and node labels, and checks of prefill and decode pools.

A template `NAME.yaml` is one or several documents with `$names` for the values of a design.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import Template

from deploy.launch import EngineCommand
from deploy.quoting import comment
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError, unknown
from simulators.core.folder import read_toml
from simulators.serving.point import AUTO, BY_LAYER, INFINITE, NVLINK, ServingPoint

TABLE = Path(__file__).with_name("gpu_nodes.toml")
SECRET, KEY = "hf-token-secret", "token"
"""The secret with a Hugging Face token, named as in vLLM's guide to Kubernetes."""

ROLES = ("prefill", "decode")
"""Names of the pools: prefill first."""

UNDEPLOYABLE_LINKS = {
    INFINITE: "a hypothetical link cannot be deployed",
    NVLINK: "workers in separate pods share no NVLink",
}

Pool = tuple[EngineCommand, ServingPoint]
"""The command of one replica of a pool, and the pool as a design of its own."""


def documents(name: str) -> list[str]:
    """Return the documents of the template of an orchestrator."""
    return Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8").split("---\n")


def rendered(template: str, **values: object) -> str:
    r"""Return a template with its names replaced by values in JSON, which is YAML.

    A line that ends with the value None is left out.

    >>> rendered("a: $a\nb: $b\n", a="x: y", b=None)
    'a: "x: y"\n'
    """
    text = Template(template).substitute({n: json.dumps(value) for n, value in values.items()})
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.endswith(" null\n"))


def comments(remarks: Iterable[str]) -> str:
    """Return remarks as comment lines, each once."""
    return "".join(map(comment, dict.fromkeys(remarks)))


def resource(gpu: str) -> str:
    """Return the resource name by which a pod requests a GPU.

    Raises:
        UserError: no device plugin of the vendor is known.

    >>> resource("mi300x")
    'amd.com/gpu'
    """
    known, vendor = read_toml(TABLE)["resources"], load_gpu(gpu).vendor
    if vendor not in known:
        raise unknown(f"no Kubernetes resource name is known for GPUs of '{vendor}'", vendor, known)
    return str(known[vendor])


def node_selector(gpu: str) -> dict[str, str] | None:
    """Return the node label of a GPU, or None if the label is unknown.

    >>> node_selector("h100_sxm")
    {'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3'}
    """
    table, sheet = read_toml(TABLE), load_gpu(gpu)
    label, product = table["labels"].get(sheet.vendor), table["products"].get(sheet.name)
    return {label: product} if label and product else None


def gpu_remarks(gpu: str) -> Iterator[str]:
    """Yield remarks on the pods of a GPU: token, image of another vendor, unknown node label."""
    command = f"kubectl create secret generic {SECRET} --from-literal={KEY}=$HF_TOKEN"
    yield f"gated models need a token once per namespace: {command}"
    if (vendor := load_gpu(gpu).vendor) != "nvidia":
        yield f"the image is NVIDIA's build: put your {vendor} stack's in its place"
    yield from node_remarks(gpu)


def node_remarks(gpu: str) -> Iterator[str]:
    """Yield a remark if the node label of a GPU is unknown."""
    if not node_selector(gpu):
        yield f"no node label of {gpu} is known here: add a nodeSelector for its nodes"


def check_pools(pools: Sequence[Pool], point: ServingPoint, orchestrator: str) -> None:
    """Refuse pools that an orchestrator's guides to disaggregated serving exclude.

    Raises:
        UserError: unsupported KV transfer or engine, or a replica spans nodes.
    """
    if why := UNDEPLOYABLE_LINKS.get(point.pools.kv_link):
        raise UserError(f"pools.kv_link {point.pools.kv_link}: {why}; choose rdma")
    if point.pools.kv_transfer == BY_LAYER:
        raise UserError(
            f"pools.kv_transfer by_layer: {orchestrator} transfers a KV cache after prefill; "
            "choose serial"
        )
    for role, (launch, _) in zip(ROLES, pools, strict=True):
        if not launch.engine.kv_connector:
            raise UserError(
                f"pools.prefill_gpus, pools.decode_gpus: separate pools of {launch.engine.label} "
                "workers are not written here, only those of vLLM"
            )
        if launch.nodes > 1:
            raise UserError(
                f"pools.prefill_gpus, pools.decode_gpus: a replica for {role} spans {launch.nodes} "
                f"nodes; {orchestrator}'s separate pools are written here for replicas in a node"
            )


def kv_remarks(point: ServingPoint) -> Iterator[str]:
    """Yield remarks on KV transfer: requirements, and differences from the simulation."""
    yield "KV transfer uses RDMA only if pods request the cluster's RDMA devices (as rdma/ib)"
    gpus = point.replicas * (point.pools.prefill_gpus + point.pools.decode_gpus)
    gpus_per_node = cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node
    if point.pools.kv_link == AUTO and gpus <= gpus_per_node:
        said = "priced with NVLink between the pools, which pods do not share"
        yield f"{said}: see pools.kv_link rdma"
