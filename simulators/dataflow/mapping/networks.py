"""Networks are lists of layers: ResNet-50, VGG-16, MobileNet, BERT and Llama blocks.

He et al. (CVPR 2016), Simonyan and Zisserman (ICLR 2015), Howard et al. (2017), Devlin et al.
(NAACL 2019), Touvron et al. (2023). Batch 1; equal layers stand once, with how often they occur.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from simulators.core.errors import UnknownNameError
from simulators.workload.loop_nest import Layer, bmm, conv, dwconv, matmul

Counted = tuple[Layer, int]

VGG16 = ((3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56),
         (256, 256, 56), (256, 256, 56), (256, 512, 28), (512, 512, 28), (512, 512, 28),
         (512, 512, 14), (512, 512, 14), (512, 512, 14))  # fmt: skip
"""Input channels, filters and output size of the 3 x 3 convolutions."""

RESNET50 = ((64, 64, 256, 56, 3), (256, 128, 512, 28, 4), (512, 256, 1024, 14, 6),
            (1024, 512, 2048, 7, 3))  # fmt: skip
"""Input channels, width, output channels, output size and blocks of the four stages."""

MOBILENET = ((32, 64, 112, 1), (64, 128, 56, 2), (128, 128, 56, 1), (128, 256, 28, 2),
             (256, 256, 28, 1), (256, 512, 14, 2), *((512, 512, 14, 1),) * 5,
             (512, 1024, 7, 2), (1024, 1024, 7, 1))  # fmt: skip
"""Input channels, output channels, output size and stride of the depthwise-separable blocks."""


def network_names() -> tuple[str, ...]:
    """Return the networks that are known."""
    return tuple(sorted(_NETWORKS))


@functools.cache
def network(name: str) -> tuple[Counted, ...]:
    """Return a network's distinct layers, each with how often it occurs.

    Raises:
        UnknownNameError: no network has that name.

    >>> sum(layer.macs * times for layer, times in network("resnet50")) // 10**6
    4089
    """
    distinct: dict[tuple[object, ...], tuple[Layer, int]] = {}
    for layer in _all_layers(name):
        key = (layer.dims, layer.bounds, layer.tensors)
        first, times = distinct.get(key, (layer, 0))
        distinct[key] = (first, times + 1)
    return tuple(distinct.values())


def chains(name: str) -> tuple[tuple[Layer, ...], ...]:
    """Return a network's layers in order, cut where an output has other readers than the next one.

    Blocks of ResNet end at the sum with their input, attention and feed-forward are chains of two.

    Raises:
        UnknownNameError: no network has that name.
    """
    found: list[list[Layer]] = []
    for layer in _all_layers(name):
        if found and _one_reader(name, found[-1][-1].name, layer.name):
            found[-1].append(layer)
        else:
            found.append([layer])
    return tuple(tuple(chain) for chain in found)


def _all_layers(name: str) -> list[Layer]:
    if name not in _NETWORKS:
        raise UnknownNameError("network", name, network_names())
    return _NETWORKS[name]()


def _one_reader(network_name: str, first: str, second: str) -> bool:
    """Whether what a layer makes is read by the layer after it alone."""
    if network_name == "resnet50":
        block, _, part = first.rpartition("_")
        return bool(block) and block == second.rpartition("_")[0] and part in ("1x1a", "3x3")
    if network_name in ("vgg16", "mobilenet"):
        return True
    return (first, second) in (("scores", "context"), ("up", "down")) and not (
        network_name.startswith("llama") and first == "up"  # its product with the gate is read
    )


def layers_of(name: str, layer: str) -> tuple[Counted, ...]:
    """Return one layer of a network, or all of them.

    Raises:
        UnknownNameError: the network or the layer is not known.
    """
    layers = network(name)
    if layer == "all":
        return layers
    known = {found.name: found for found, _ in layers}
    if layer not in known:
        raise UnknownNameError(f"layer of {name}", layer, ("all", *known))
    return ((known[layer], 1),)


def _resnet50() -> list[Layer]:
    layers = [conv("conv1", m=64, c=3, r=7, s=7, p=112, q=112, stride=2)]
    for stage, (before, width, after, size, blocks) in enumerate(RESNET50, start=2):
        for block in range(blocks):
            name = f"conv{stage}_{block + 1}"
            first = block == 0
            inputs = before if first else after
            stride = 2 if first and stage > 2 else 1
            entry = size * stride  # the stride stands on the 3 x 3 convolution
            layers += [
                conv(f"{name}_1x1a", m=width, c=inputs, r=1, s=1, p=entry, q=entry),
                conv(f"{name}_3x3", m=width, c=width, r=3, s=3, p=size, q=size, stride=stride),
                conv(f"{name}_1x1b", m=after, c=width, r=1, s=1, p=size, q=size),
            ]
            if first:
                layers.append(
                    conv(f"{name}_skip", m=after, c=inputs, r=1, s=1, p=size, q=size, stride=stride)
                )
    return [*layers, matmul("fc", n=1, c=2048, m=1000)]


def _vgg16() -> list[Layer]:
    layers = [
        conv(f"conv{k}", m=m, c=c, r=3, s=3, p=size, q=size)
        for k, (c, m, size) in enumerate(VGG16, start=1)
    ]
    return [
        *layers,
        matmul("fc6", n=1, c=25088, m=4096),
        matmul("fc7", n=1, c=4096, m=4096),
        matmul("fc8", n=1, c=4096, m=1000),
    ]


def _mobilenet() -> list[Layer]:
    layers = [conv("conv1", m=32, c=3, r=3, s=3, p=112, q=112, stride=2)]
    for k, (before, after, size, stride) in enumerate(MOBILENET, start=1):
        layers.append(dwconv(f"dw{k}", c=before, r=3, s=3, p=size, q=size, stride=stride))
        layers.append(conv(f"pw{k}", m=after, c=before, r=1, s=1, p=size, q=size))
    return [*layers, matmul("fc", n=1, c=1024, m=1000)]


def _encoder(blocks: int, tokens: int, width: int, heads: int, inner: int) -> list[Layer]:
    """Return transformer blocks; attention is two chained batched products."""
    size = width // heads
    block = [
        *(matmul(part, n=tokens, c=width, m=width) for part in ("query", "key", "value")),
        bmm("scores", b=heads, n=tokens, c=size, m=tokens),
        bmm("context", b=heads, n=tokens, c=tokens, m=size),
        matmul("projection", n=tokens, c=width, m=width),
        matmul("up", n=tokens, c=width, m=inner),
        matmul("down", n=tokens, c=inner, m=width),
    ]
    return block * blocks


def _llama7b(tokens: int, past: int) -> list[Layer]:
    width, heads, inner = 4096, 32, 11008
    seen = tokens + past
    return [
        *(matmul(part, n=tokens, c=width, m=width) for part in ("query", "key", "value")),
        bmm("scores", b=heads, n=tokens, c=width // heads, m=seen),
        bmm("context", b=heads, n=tokens, c=seen, m=width // heads),
        matmul("projection", n=tokens, c=width, m=width),
        *(matmul(part, n=tokens, c=width, m=inner) for part in ("gate", "up")),
        matmul("down", n=tokens, c=inner, m=width),
    ]


_NETWORKS: dict[str, Callable[[], list[Layer]]] = {
    "resnet50": _resnet50,
    "vgg16": _vgg16,
    "mobilenet": _mobilenet,
    "bert_base_128": lambda: _encoder(12, 128, 768, 12, 3072),
    "llama7b_prefill_block_512": lambda: _llama7b(512, 0),
    "llama7b_decode_block_1024": lambda: _llama7b(1, 1023),
}
