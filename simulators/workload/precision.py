"""Precisions: how a model is stored and multiplied, by names such as `fp8`, `w4a16`, `bf16`.

Public MoE checkpoints often quantize only the experts: `bf16+fp4` is bf16 with fp4 routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulators.core.errors import UnknownNameError

BYTES = {
    "fp32": 4.0,
    "tf32": 4.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "fp4": 0.5,
    "int4": 0.5,
    "fp8_block": 1.0 + 4.0 / 128.0**2,
}
"""Bytes of one number, by format; blocks of 128 by 128 share a scale of four bytes."""

SCALES = {"fp4": 1.0 / 16.0, "int4": 2.0 / 128.0}
"""Bytes of scales per stored 4-bit weight: one per 16 numbers of NVFP4 (NVIDIA on NVFP4, June
2025), two per group of 128 of AWQ and GPTQ checkpoints. Times do not add them: kernels were timed
with scales."""

MXFP4_SCALE = 1.0 / 32.0
"""The same of MXFP4, one for each 32 numbers (OCP Microscaling Formats, 1.0)."""


@dataclass(frozen=True)
class Block:
    """Numbers of a matrix that share a scale; engines refuse to split a block."""

    outputs: int
    inputs: int
    of_experts: bool  # whether the rule holds for experts


BLOCKS = {"fp8_block": Block(128, 128, True), "int4": Block(1, 128, False)}
"""By format of weights. FP8: `weight_block_size` of the configs of DeepSeek-V3 and Qwen3-FP8, and
vLLM's `validate_fp8_block_shape` and `Fp8MoEMethod.create_weights`. 4 bits: `group_size` of public
AWQ and GPTQ checkpoints, and vLLM's `GPTQLinearMethod.create_weights`; its `MoeWNA16Method` halves
the groups of experts until they divide."""


@dataclass(frozen=True)
class Precision:
    """Precisions of products, of stored weights and of activations."""

    compute: str  # of the tensor units
    weights: str  # as stored
    activations: str  # of everything else: norms, attention, embedding, LM head, messages
    expert_compute: str = ""  # of the routed experts, where they differ
    expert_weights: str = ""

    @property
    def weight_bytes(self) -> float:
        """Bytes per stored weight of a linear layer, scales included."""
        return stored_bytes(self.weights)

    @property
    def expert_bytes(self) -> float:
        """Bytes per stored weight of a routed expert, scales included."""
        return stored_bytes(self.expert_weights or self.weights)

    @property
    def activation_bytes(self) -> float:
        """Bytes of one number between the layers, and of embedding and LM head."""
        return BYTES[self.activations]


PRECISIONS = {
    "fp32": Precision("fp32", "fp32", "fp32"),
    "tf32": Precision("tf32", "fp32", "fp32"),
    "fp16": Precision("fp16", "fp16", "fp16"),
    "bf16": Precision("bf16", "bf16", "bf16"),
    "fp8": Precision("fp8", "fp8", "bf16"),
    "int8": Precision("int8", "int8", "fp16"),
    "fp8_block": Precision("fp8", "fp8_block", "bf16"),
    "fp4": Precision("fp4", "fp4", "bf16"),
    "w8a16": Precision("fp16", "int8", "fp16"),
    "w4a16": Precision("fp16", "int4", "fp16"),
    "w4a8": Precision("fp8", "fp4", "bf16"),
}
PRECISIONS |= {"w8a8": PRECISIONS["int8"], "nvfp4": PRECISIONS["fp4"]}
"""By name. Embedding and LM head stay unquantized, as in public checkpoints."""


QUANTISED = ("fp8", "fp8_block", "fp4", "int8")
"""Formats of products whose activations are quantized from 16 bits."""

QUANTISED_IN_CALL = ("fp8_block",)
"""Formats of weights whose products quantize their activations themselves, by a first kernel, in
vLLM (`W8A8BlockFp8LinearOp`), SGLang (`w8a8_block_fp8_linear`) and TensorRT-LLM
(`fp8_quantize_1x128`). Otherwise the norm or activation before the product writes 8 bits."""


def precision(name: str) -> Precision:
    """Return the precision with a name.

    Raises:
        UnknownNameError: the precision is unknown.

    >>> precision("w4a16").weight_bytes, precision("bf16+fp4").expert_bytes
    (0.515625, 0.5625)
    """
    base, plus, experts = name.partition("+")
    if plus and base in PRECISIONS and experts in PRECISIONS:
        narrow = PRECISIONS[experts]
        return replace(
            PRECISIONS[base], expert_compute=narrow.compute, expert_weights=narrow.weights
        )
    if name not in PRECISIONS:
        raise UnknownNameError("dtype", name, PRECISIONS)
    return PRECISIONS[name]


def stored_bytes(weights: str) -> float:
    """Return the bytes per stored weight of a format, scales included."""
    return BYTES[weights] + SCALES.get(weights, 0.0)


def number_bytes(dtype: str) -> float:
    """Return the bytes of one cached number.

    Raises:
        UnknownNameError: the format is unknown.

    >>> number_bytes("fp8")
    1.0
    """
    if dtype not in BYTES:
        raise UnknownNameError("kv_dtype", dtype, BYTES)
    return BYTES[dtype]
