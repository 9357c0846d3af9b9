"""Which nodes of a cluster hold a GPU: the label they are found by, what GPUs are asked for by."""

from __future__ import annotations

from pathlib import Path

from deploy.quoting import comment
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import unknown
from simulators.core.folder import read_toml

TABLE = Path(__file__).with_name("gpu_nodes.toml")
SECRET, KEY = "hf-token-secret", "token"
"""The secret with a Hugging Face token, named as in vLLM's guide to Kubernetes."""


def resource(gpu: str) -> str:
    """Return what a pod asks for one of these GPUs by.

    Raises:
        UserError: its vendor has no device plugin that is known.

    >>> resource("mi300x")
    'amd.com/gpu'
    """
    known, vendor = read_toml(TABLE)["resources"], load_gpu(gpu).vendor
    if vendor not in known:
        raise unknown(f"it is not known what pods ask for GPUs of '{vendor}' by", vendor, known)
    return str(known[vendor])


def selector(gpu: str) -> dict[str, str]:
    """Return the label and its value of nodes with this GPU; nothing where no name is known.

    >>> selector("h100_sxm")
    {'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3'}
    """
    table, sheet = read_toml(TABLE), load_gpu(gpu)
    label, product = table["labels"].get(sheet.vendor), table["products"].get(sheet.name)
    return {label: product} if label and product else {}


def node_lines(gpu: str, indent: int) -> str:
    """Return the lines of a pod's specification that say which nodes will do."""
    blank = " " * indent
    chosen = selector(gpu)
    if not chosen:
        said = f"no node label of {gpu} is known here: add a nodeSelector for its nodes"
        return f"{blank}{comment(said)}"
    return f"{blank}nodeSelector:\n" + "".join(f"{blank}  {k}: {v}\n" for k, v in chosen.items())


def token_lines(indent: int) -> str:
    """Return the lines of a container's specification that read its token from the secret."""
    lines = (
        "env:",
        "  - name: HF_TOKEN",
        f"    valueFrom: {{secretKeyRef: {{name: {SECRET}, key: {KEY}, optional: true}}}}",
    )
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def notes(gpu: str) -> str:
    """Return comments: how the secret comes to be, and where the image is not of this vendor."""
    command = f"kubectl create secret generic {SECRET} --from-literal={KEY}=$HF_TOKEN"
    said = f"# gated models need a token once per namespace: {command}\n"
    if (vendor := load_gpu(gpu).vendor) != "nvidia":
        said += comment(f"the image is NVIDIA's build: put your {vendor} stack's in its place")
    return said
