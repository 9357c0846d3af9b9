"""Kubernetes resource names and node labels of GPUs."""

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


def selector(gpu: str) -> dict[str, str]:
    """Return the node label of a GPU; empty if unknown.

    >>> selector("h100_sxm")
    {'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3'}
    """
    table, sheet = read_toml(TABLE), load_gpu(gpu)
    label, product = table["labels"].get(sheet.vendor), table["products"].get(sheet.name)
    return {label: product} if label and product else {}


def node_lines(gpu: str, indent: int) -> str:
    """Return the node selector of a pod as YAML lines."""
    blank = " " * indent
    chosen = selector(gpu)
    if not chosen:
        said = f"no node label of {gpu} is known here: add a nodeSelector for its nodes"
        return f"{blank}{comment(said)}"
    return f"{blank}nodeSelector:\n" + "".join(f"{blank}  {k}: {v}\n" for k, v in chosen.items())


def token_lines(indent: int) -> str:
    """Return the YAML lines that pass the Hugging Face token to a container."""
    lines = (
        "env:",
        "  - name: HF_TOKEN",
        f"    valueFrom: {{secretKeyRef: {{name: {SECRET}, key: {KEY}, optional: true}}}}",
    )
    return "".join(f"{' ' * indent}{line}\n" for line in lines)


def notes(gpu: str) -> str:
    """Return comments: creation of the secret, and a warning for images of another vendor."""
    command = f"kubectl create secret generic {SECRET} --from-literal={KEY}=$HF_TOKEN"
    said = f"# gated models need a token once per namespace: {command}\n"
    if (vendor := load_gpu(gpu).vendor) != "nvidia":
        said += comment(f"the image is NVIDIA's build: put your {vendor} stack's in its place")
    return said
