"""Diffusion models: a text encoder, a denoiser that runs many steps, and a decoder.

A U-Net of residual and transformer blocks with text as a second sequence (Rombach et al., Latent
diffusion, 2022) or a transformer over patches whose norms are set by the time step (Peebles and
Xie, DiT, 2023). With classifier-free guidance every step runs on twice the images, with and without
the condition (Ho and Salimans, 2022). Training runs one step and no decoder.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch
from simulators.workload.graphs.transformers import (
    cross_attention,
    encoder_layer,
    feed_forward,
    self_attention,
)

LATENT_CHANNELS = 4
"""Channels of the latent image in Stable Diffusion's autoencoder."""

REDUCTION = 8
"""Pixels of an image per pixel of its latent, along one side."""


@dataclass(frozen=True, kw_only=True)
class Diffusion(ModelFamily):
    """A denoiser of latent images that runs several steps, and the autoencoder's decoder."""

    decoder_widths: tuple[int, ...]
    image: int
    steps: int
    guidance: bool = True

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of images; the length is their pixels per side."""
        g = Sketch(self.name)
        side = (load.length or self.image) // REDUCTION
        images = load.batch * (2 if self.guidance and not load.training else 1)
        text = self._text(g, images)
        with g.steps(1 if load.training else self.steps):
            self._denoise(g, g.input((images, LATENT_CHANNELS, side, side), "noise"), text)
        if not load.training:
            _decoder(g, self.decoder_widths, g.input((load.batch, LATENT_CHANNELS, side, side)))
        return g.graph()

    def _text(self, _g: Sketch, _batch: int) -> int | None:
        """Draw the text encoder, if the model has a text encoder."""
        return None

    @abstractmethod
    def _denoise(self, g: Sketch, x: int, text: int | None) -> int:
        """Draw one step."""


@dataclass(frozen=True, kw_only=True)
class LatentDiffusion(Diffusion):
    """Text encoder, U-Net over latents, and the autoencoder's decoder."""

    widths: tuple[int, ...]  # channels by resolution
    attends: tuple[bool, ...]  # whether a resolution has transformer blocks
    depth: int  # residual blocks per resolution
    heads: int
    text_layers: int
    text_hidden: int
    text_heads: int
    text_vocab: int
    text_length: int
    image: int = 512
    steps: int = 50

    def _text(self, g: Sketch, batch: int) -> int:
        ids = g.input((batch, self.text_length), "ids")
        x = g.embedding(ids, (self.text_vocab, self.text_hidden), name="tokens")
        places = g.input((1, self.text_length), "positions")
        table = (self.text_length, self.text_hidden)
        x = g.add(x, g.embedding(places, table, name="positions"))
        with g.layers(self.text_layers, "text"):
            x = encoder_layer(g, x, self.text_heads, 4 * self.text_hidden, causal=True)
        return g.norm(x)

    def _denoise(self, g: Sketch, x: int, text: int | None) -> int:
        assert text is not None
        time = _time_embedding(g, g.shape(x)[0], self.widths[0], 4 * self.widths[0])
        x = g.conv(x, self.widths[0], 3, bias=True)
        skips = [x]
        for level, width in enumerate(self.widths):
            for _ in range(self.depth):
                x = _residual(g, x, width, time)
                x = self._transformer(g, x, text) if self.attends[level] else x
                skips.append(x)
            if level + 1 < len(self.widths):
                x = g.conv(x, width, 3, stride=2, bias=True)
                skips.append(x)
        x = _residual(g, x, self.widths[-1], time)
        x = _residual(g, self._transformer(g, x, text), self.widths[-1], time)
        for level in reversed(range(len(self.widths))):
            for _ in range(self.depth + 1):
                x = _residual(g, _joined(g, x, skips.pop()), self.widths[level], time)
                x = self._transformer(g, x, text) if self.attends[level] else x
            if level:
                x = g.conv(_doubled(g, x), self.widths[level], 3, bias=True)
        x = g.pointwise("silu", g.norm(x, "group_norm"))
        return g.conv(x, LATENT_CHANNELS, 3, bias=True)

    def _transformer(self, g: Sketch, x: int, text: int) -> int:
        """Draw self-attention, attention to the text and a gated feed-forward over pixels."""
        shape = g.shape(x)
        batch, width, high, wide = shape
        y = g.conv(g.norm(x, "group_norm"), width, 1, bias=True)
        y = g.copy((y,), (batch, high * wide, width))
        y = g.add(y, self_attention(g, g.norm(y), self.heads, bias=False))
        y = g.add(y, cross_attention(g, g.norm(y), text, self.heads))
        y = g.add(y, feed_forward(g, g.norm(y), 4 * width, gated=True))
        return g.add(x, g.conv(g.copy((y,), shape), width, 1, bias=True))


@dataclass(frozen=True, kw_only=True)
class DiffusionTransformer(Diffusion):
    """Patches of a latent image as tokens; the time step scales and shifts every norm."""

    layers: int
    hidden: int
    heads: int
    patch: int
    classes: int
    image: int = 256
    steps: int = 250
    frequencies: int = 256

    def _denoise(self, g: Sketch, x: int, _text: int | None) -> int:
        batch, _, side, _ = g.shape(x)
        tokens, hidden = (side // self.patch) ** 2, self.hidden
        x = g.conv(x, hidden, self.patch, stride=self.patch, padding=0, bias=True)
        places = g.node("weight", (), (1, tokens, hidden), weights=((tokens, hidden),))
        x = g.add(g.copy((x,), (batch, tokens, hidden)), places)
        time = _time_embedding(g, batch, self.frequencies, hidden)
        label = g.input((batch, 1), "label")
        label = g.embedding(label, (self.classes + 1, hidden), name="labels")
        setting = g.pointwise("silu", g.add(time, g.view(label, (batch, hidden))))
        with g.layers(self.layers):
            shifts = g.linear(setting, 6 * hidden, name="modulation")
            x = g.add(x, _gated(g, self_attention(g, _set(g, x, shifts), self.heads), shifts))
            x = g.add(x, _gated(g, feed_forward(g, _set(g, x, shifts), 4 * hidden), shifts))
        shifts = g.linear(setting, 2 * hidden, name="modulation")
        return g.linear(_set(g, x, shifts), self.patch**2 * 2 * LATENT_CHANNELS, name="pixels")


def _set(g: Sketch, x: int, shifts: int) -> int:
    """Draw a norm without weights of its own, scaled and shifted."""
    batch, _, hidden = g.shape(x)
    scale, shift = (g.part(shifts, (batch, 1, hidden)) for _ in range(2))
    plain = g.node("layer_norm", (x,), g.shape(x))
    return g.add(g.mul(plain, scale), shift)


def _gated(g: Sketch, x: int, shifts: int) -> int:
    batch, _, hidden = g.shape(x)
    return g.mul(x, g.part(shifts, (batch, 1, hidden)))


def _time_embedding(g: Sketch, batch: int, frequencies: int, width: int) -> int:
    waves = g.input((batch, frequencies), "time")
    return g.linear(g.pointwise("silu", g.linear(waves, width)), width, name="time")


def _residual(g: Sketch, x: int, width: int, time: int | None = None) -> int:
    """Draw two convolutions with group norms, and the time step's share between them."""
    batch = g.shape(x)[0]
    y = g.conv(g.pointwise("silu", g.norm(x, "group_norm")), width, 3, bias=True)
    if time is not None:
        share = g.linear(g.pointwise("silu", time), width, name="time_share")
        y = g.add(y, g.view(share, (batch, width, 1, 1)))
    y = g.conv(g.pointwise("silu", g.norm(y, "group_norm")), width, 3, bias=True)
    return g.add(g.conv(x, width, 1, bias=True) if g.shape(x)[1] != width else x, y)


def _joined(g: Sketch, a: int, b: int) -> int:
    batch, channels, high, wide = g.shape(a)
    return g.copy((a, b), (batch, channels + g.shape(b)[1], high, wide), name="join")


def _doubled(g: Sketch, x: int) -> int:
    batch, channels, high, wide = g.shape(x)
    return g.copy((x,), (batch, channels, 2 * high, 2 * wide), name="upsample")


def _decoder(g: Sketch, widths: tuple[int, ...], latent: int) -> int:
    """Draw the autoencoder's decoder: attention at the latent's resolution, then upsampling.

    `widths`: channels by resolution, smallest image first.
    """
    x = g.conv(latent, LATENT_CHANNELS, 1, bias=True)
    x = g.conv(x, widths[0], 3, bias=True)
    x = _residual(g, x, widths[0])
    shape = g.shape(x)
    batch, width, high, wide = shape
    y = g.copy((g.norm(x, "group_norm"),), (batch, high * wide, width))
    y = self_attention(g, y, 1)
    x = _residual(g, g.add(x, g.copy((y,), shape)), widths[0])
    for level, width in enumerate(widths):
        for _ in range(3):
            x = _residual(g, x, width)
        if level + 1 < len(widths):
            x = g.conv(_doubled(g, x), width, 3, bias=True)
    return g.conv(g.pointwise("silu", g.norm(x, "group_norm")), 3, 3, bias=True)
