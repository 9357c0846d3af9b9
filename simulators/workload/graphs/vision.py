"""Image classifiers: ResNet, VGG, MobileNetV2 and ViT.

ResNet (He et al., 2016), VGG (Simonyan and Zisserman, 2015), MobileNetV2 (Sandler et al., 2018) and
ViT (Dosovitskiy et al., 2021), as torchvision and Hugging Face build them. Images are square.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch
from simulators.workload.graphs.transformers import encoder_layer


@dataclass(frozen=True, kw_only=True)
class Classifier(ModelFamily):
    """A model that assigns each image to a class."""

    image: int = 224
    classes: int = 1000

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of images; the length is their pixels per side."""
        g, side = Sketch(self.name), load.length or self.image
        x = self._pooled(g, g.input((load.batch, 3, side, side)))
        g.linear(x, self.classes, name="classifier")
        return g.graph()

    @abstractmethod
    def _pooled(self, g: Sketch, x: int) -> int:
        """Draw everything between the images and the last linear layer."""


@dataclass(frozen=True, kw_only=True)
class ResNet(Classifier):
    """Bottleneck blocks in stages, each stage at half the resolution of the one before."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]  # of the result of each stage
    stem: int = 64
    squeeze: int = 4  # a block's result over its inner width

    def _pooled(self, g: Sketch, x: int) -> int:
        x = _conv_norm(g, x, self.stem, 7, stride=2)
        x = g.pool(x, 3, stride=2, padding=1)
        for stage, (depth, width) in enumerate(zip(self.depths, self.widths, strict=True)):
            x = self._block(g, x, width, stride=1 if stage == 0 else 2)
            if depth > 1:
                with g.layers(depth - 1, f"stage{stage + 1}"):
                    x = self._block(g, x, width, stride=1)
        return _mean_of_pixels(g, x)

    def _block(self, g: Sketch, x: int, width: int, *, stride: int) -> int:
        inner = width // self.squeeze
        y = _conv_norm(g, x, inner, 1)
        y = _conv_norm(g, y, inner, 3, stride=stride)
        y = _conv_norm(g, y, width, 1, kind="")
        if stride > 1 or g.shape(x)[1] != width:
            x = _conv_norm(g, x, width, 1, stride=stride, kind="")
        return g.relu(g.add(y, x))


@dataclass(frozen=True, kw_only=True)
class Vgg(Classifier):
    """Stacks of 3 x 3 convolutions, a pool after each, and three wide linear layers."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    hidden: int = 4096

    def _pooled(self, g: Sketch, x: int) -> int:
        for depth, width in zip(self.depths, self.widths, strict=True):
            for _ in range(depth):
                x = g.relu(g.conv(x, width, 3, bias=True))
            x = g.pool(x, 2, stride=2)
        batch, channels, height, wide = g.shape(x)
        x = g.view(x, (batch, channels * height * wide))
        for _ in range(2):
            x = g.pointwise("dropout", g.relu(g.linear(x, self.hidden)))
        return x


@dataclass(frozen=True, kw_only=True)
class MobileNet(Classifier):
    """Inverted residuals: wide inside, filtered channel by channel, narrow between."""

    expansions: tuple[int, ...]
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    strides: tuple[int, ...]
    stem: int = 32
    head: int = 1280

    def _pooled(self, g: Sketch, x: int) -> int:
        x = _conv_norm(g, x, self.stem, 3, stride=2)
        stages = zip(self.expansions, self.widths, self.depths, self.strides, strict=True)
        for expansion, width, depth, stride in stages:
            x = _inverted(g, x, width, expansion, stride)
            if depth > 1:
                with g.layers(depth - 1):
                    x = g.add(x, _inverted(g, x, width, expansion, 1))
        return _mean_of_pixels(g, _conv_norm(g, x, self.head, 1))


@dataclass(frozen=True, kw_only=True)
class VisionTransformer(Classifier):
    """Patches as tokens, and a class token."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    patch: int = 16

    def _pooled(self, g: Sketch, x: int) -> int:
        batch, _, side, _ = g.shape(x)
        x = g.conv(x, self.hidden, self.patch, stride=self.patch, padding=0, bias=True)
        tokens = (side // self.patch) ** 2 + 1
        table = g.node("weight", (), (1, tokens, self.hidden), weights=((tokens + 1, self.hidden),))
        x = g.add(g.copy((x,), (batch, tokens, self.hidden)), table)
        with g.layers(self.layers):
            x = encoder_layer(g, x, self.heads, self.ffn)
        return g.part(g.norm(x), (batch, self.hidden))


def _inverted(g: Sketch, x: int, width: int, expansion: int, stride: int) -> int:
    inner = g.shape(x)[1] * expansion
    y = _conv_norm(g, x, inner, 1) if expansion > 1 else x
    y = _conv_norm(g, y, inner, 3, stride=stride, groups=inner)
    return _conv_norm(g, y, width, 1, kind="")


def _conv_norm(
    g: Sketch,
    x: int,
    filters: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    kind: str = "relu",
) -> int:
    y = g.norm(g.conv(x, filters, kernel, stride=stride, groups=groups), "batch_norm")
    return g.pointwise(kind, y) if kind else y


def _mean_of_pixels(g: Sketch, x: int) -> int:
    return g.mean(x, g.shape(x)[:2])
