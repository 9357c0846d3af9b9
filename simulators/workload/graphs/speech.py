"""Speech encoders: Whisper's, and the keys and values that its decoder attends to.

Two convolutions over spectrogram frames, the second with stride 2, then transformer layers with
norms before (Radford et al., Robust speech recognition via large-scale weak supervision, 2022). A
convolution in one dimension is a product over windows that a copy lays out. Engines compute the
keys and values of the decoder's cross-attention once, behind the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulators.core.errors import UserError
from simulators.workload.graphs.graph import Graph, Load, ModelFamily, Sketch
from simulators.workload.graphs.transformers import encoder_layer

KERNEL, STRIDE = 3, 2


@dataclass(frozen=True, kw_only=True)
class SpeechEncoder(ModelFamily):
    """Frames of a spectrogram through convolutions and transformer layers."""

    layers: int
    decoder_layers: int  # whose cross-attention reads the result
    hidden: int
    heads: int
    ffn: int
    mels: int = 80  # bins of a frame
    frames: int = 3000  # of 30 s, the most

    def draw(self, load: Load) -> Graph:
        """Return the graph for a batch of recordings; the length is the number of frames.

        Raises:
            UserError: the length is odd or beyond the model's.
        """
        g, frames = Sketch(self.name), load.length or self.frames
        if frames > self.frames or frames % STRIDE:
            raise UserError(
                f"model '{self.name}' takes an even number of up to {self.frames} frames, "
                f"not {frames}"
            )
        x = g.input((load.batch, frames, self.mels), "spectrogram")
        for tokens in (frames, frames // STRIDE):
            width = g.shape(x)[-1]
            windows = g.copy((x,), (load.batch, tokens, KERNEL * width), name="windows")
            x = g.pointwise("gelu", g.linear(windows, self.hidden, name="conv"))
        tokens = self.frames // STRIDE
        places = g.node("weight", (), (1, tokens, self.hidden), weights=((tokens, self.hidden),))
        x = g.add(x, places)
        with g.layers(self.layers):
            x = encoder_layer(g, x, self.heads, self.ffn)
        x = g.norm(x)
        with g.layers(self.decoder_layers, "cross"):
            g.linear(x, 2 * self.hidden, name="cross_kv")
        return g.graph()
