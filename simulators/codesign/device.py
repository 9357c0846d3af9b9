"""Throughput of a language model on a device that is known by its data sheet alone.

A device has rates, memory, links and a power limit. In the steady state of a full load every step
decodes a token of each running sequence and prefills the prompts that take the place of finished
ones. The parts of a step follow one another:

    step = flops / sustained rate + bytes / sustained bandwidth + exchanged bytes / links + host
    sustained rate = peak * compute * (fp4, for 4-bit products) * min(1, watts / hopper)^power

The last factor is the power limit: a device with fewer watts per peak operation than an H100 SXM,
relative to its precision, lowers its clock. Sequences fill the memory; the model is cut over as
many devices, by tensor or by pipeline, as give the most tokens per second and device. Tokens per
second have one more factor, that of the vendor's software. The factors are fitted to measured
devices (`lab/fits/accelerators/devices.py`). Williams et al., "Roofline" (CACM 2009).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulators.catalog.cluster import PCIE, THROUGH_HOST, load_cluster
from simulators.catalog.gpu import Gpu
from simulators.catalog.model import LanguageModel
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import PACKAGE

FILE = PACKAGE / "codesign" / "calibration" / "devices.toml"
BYTES = {"fp4": 0.5625, "fp8": 1.0, "fp16": 2.0}
"""Bytes of a weight: 4-bit weights have an fp8 scale per block of 16."""

NARROWEST = ("fp4", "fp8", "fp16")
WATTS_PER_FLOP = 700.0 / 1.9789e15
"""Of an H100 SXM at fp8, whose clock the power limit does not lower much."""

ENERGY_OF = {"fp4": 0.43, "fp8": 1.0, "fp16": 2.0}
"""Energy of an operation relative to fp8: fp4 by the ratio of multiplier areas of 4 and 8 bit with
their wires (Dally, Hot Chips 2023), fp16 by width."""

USABLE, RESERVED_BYTES = 0.92, 4e9
"""Share of the memory that an engine may use, and bytes of its buffers."""

HOST_S, LINK_SHARE = 3e-3, 0.7
"""Time of an engine between steps, and the share of a link's rate that a reduction reaches."""

ACTIVATIONS = 10.0, 3.0
"""Reads and writes of a layer's activations, in hidden widths and in widths of the FFN."""

MAX_DEVICES = 64
"""Most devices of a replica."""

MAX_SEQUENCES = 2048
"""Most sequences per device."""

ACTIVATION_BYTES = 2.0

PIPELINE = 0.5
"""Share of the rate of equal, always busy stages that a pipeline keeps: of 0.5, 0.6, 0.7, 0.85 and
1 the value with the least error of devices that were left out."""

OWN_VENDOR = "nvidia"
"""Vendor whose software the factors describe; others have a factor of their own, or none."""


@dataclass(frozen=True)
class DeviceSheet:
    """Data sheet of an accelerator device. `peak_flops` is by precision: fp4, fp8, fp16."""

    name: str
    peak_flops: Mapping[str, float]
    hbm_bytes: float
    hbm_bytes_per_s: float
    link_bytes_per_s: float  # per direction, to devices of its domain
    domain: int  # devices with links to each other
    tdp_w: float
    vendor: str = OWN_VENDOR


@dataclass(frozen=True)
class FullLoad:
    """A stream of equal requests that never ends.

    `hit` is the share of the prompt that the prefix cache holds.
    """

    prompt: float
    output: float
    hit: float = 0.0
    tpot_s: float = math.inf  # limit of a step


@dataclass(frozen=True)
class DeviceFactors:
    """Fitted factors of all devices; `spread` is the standard deviation of log errors."""

    compute: float
    fp4: float
    power: float
    memory: float
    amd: float = 1.0  # tokens per second with the software of AMD
    spread: float = 0.0

    def interval(self, value: float) -> tuple[float, float]:
        """Return the 90 % interval around tokens per second of a device that was not fitted."""
        width = math.exp(1.6449 * self.spread)
        return value / width, value * width


@dataclass(frozen=True)
class Steady:
    """Steady state of the best cut: tokens per second and device, and how it is reached."""

    tokens_per_s: float
    step_s: float
    sequences: float  # per device
    devices: int
    cut: str  # tensor or pipeline
    dtype: str


def device_of(gpu: Gpu) -> DeviceSheet:
    """Return the data sheet of a GPU of the catalog, with nothing that was measured."""
    peaks = dict(gpu.peak_flops)
    if "bf16" in peaks:
        peaks.setdefault("fp16", peaks["bf16"])
    cluster = load_cluster(gpu.cluster)
    has_links = gpu.link_bytes_per_s > 0.0 and cluster.fabric_of(gpu) not in (PCIE, THROUGH_HOST)
    return DeviceSheet(
        name=gpu.name,
        peak_flops={dtype: peaks[dtype] for dtype in NARROWEST if dtype in peaks},
        hbm_bytes=gpu.hbm_bytes,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        link_bytes_per_s=gpu.link_bytes_per_s if has_links else gpu.pcie_bytes_per_s / 2.0,
        domain=cluster.gpus_per_node,
        tdp_w=gpu.tdp_w,
        vendor=gpu.vendor,
    )


def calibrated() -> DeviceFactors:
    """Return the fitted factors of the package."""
    content = read_calibration(FILE)["devices"]
    return DeviceFactors(**{name: float(value) for name, value in content.items()})


def narrowest(device: DeviceSheet) -> str:
    """Return the narrowest precision of a device's products."""
    return next(dtype for dtype in NARROWEST if dtype in device.peak_flops)


def steady(
    device: DeviceSheet,
    model: LanguageModel,
    load: FullLoad,
    factors: DeviceFactors,
    dtype: str = "",
) -> Steady:
    """Return the steady state with the most tokens per second and device.

    `dtype` is that of weights and products, by default the narrowest of the device.

    Raises:
        Infeasible: the device lacks the precision, the model does not fit into the domain, or no
            batch meets the limit of a step.
    """
    dtype = dtype or narrowest(device)
    if dtype not in device.peak_flops:
        raise Infeasible("dtype_unsupported", f"{device.name} has no {dtype} products")
    found = [
        one
        for devices in _powers(device.domain)
        for cut in (("tensor",) if devices == 1 else ("tensor", "pipeline"))
        for one in [_cut(device, model, load, factors, dtype, devices, cut)]
        if one is not None
    ]
    if not found:
        raise Infeasible("memory_exceeds_hbm", f"{model.name} or its step does not fit")
    return max(found, key=lambda one: one.tokens_per_s)


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length()) if 2**k <= min(most, MAX_DEVICES)]


def _cut(
    device: DeviceSheet,
    model: LanguageModel,
    load: FullLoad,
    factors: DeviceFactors,
    dtype: str,
    devices: int,
    cut: str,
) -> Steady | None:
    """Return the best batch of one cut, or None if nothing fits."""
    weights = model.parameters * BYTES[dtype]
    context = load.prompt + load.output / 2.0
    kv = kv_bytes(model) * context
    free = (device.hbm_bytes * USABLE - RESERVED_BYTES) * devices - weights
    most = min(free / kv, MAX_SEQUENCES * devices)
    if most < 1.0:
        return None
    batch = np.geomspace(1.0, most, 24)
    computed = batch * (1.0 + load.prompt * (1.0 - load.hit) / load.output)  # tokens of a step
    layer_flops = 4.0 * model.layers * model.heads * model.head_dim * context
    flops = 2.0 * model.active_parameters * computed + layer_flops * batch
    width = model.top_k * model.expert_width if model.experts else model.ffn
    hidden, ffn = ACTIVATIONS
    moved = computed * model.layers * ACTIVATION_BYTES * (hidden * model.hidden + ffn * width)
    passes = devices if cut == "pipeline" else 1  # every micro-batch reads its stage's weights
    touched = np.minimum(
        1.0, (model.active_parameters / model.parameters) * np.maximum(computed, 1.0)
    )
    read = weights * touched * passes + batch * kv + moved
    exchanged = computed * model.hidden * ACTIVATION_BYTES
    if cut == "tensor":
        exchanged = exchanged * 4.0 * model.layers * (devices - 1) / devices
    else:
        exchanged = exchanged * (devices - 1) / devices
    step_s = (
        flops / devices / sustained(device, dtype, factors)
        + read / devices / (device.hbm_bytes_per_s * factors.memory)
        + exchanged / (device.link_bytes_per_s * LINK_SHARE)
        + HOST_S
    )
    ok = step_s * passes <= load.tpot_s
    if not ok.any():
        return None
    software = factors.amd if device.vendor == "amd" else 1.0
    kept = software * (PIPELINE if cut == "pipeline" else 1.0)
    rate = np.where(ok, kept * batch / step_s / devices, 0.0)
    at = int(rate.argmax())
    return Steady(
        tokens_per_s=float(rate[at]),
        step_s=float(step_s[at]),
        sequences=float(batch[at]) / devices,
        devices=devices,
        cut=cut,
        dtype=dtype,
    )


def sustained(device: DeviceSheet, dtype: str, factors: DeviceFactors) -> float:
    """Return the sustained rate of products in FLOPs per second."""
    peak = device.peak_flops[dtype]
    watts = device.tdp_w / peak / (WATTS_PER_FLOP * ENERGY_OF[dtype])
    share = factors.compute * (factors.fp4 if dtype == "fp4" else 1.0)
    return float(peak * share * min(1.0, watts) ** factors.power)


def kv_bytes(model: LanguageModel) -> float:
    """Return the bytes of a token's keys and values in fp8.

    Raises:
        UserError: the model has sliding windows, states, or sparse attention.
    """
    if model.window or model.has_states or model.index_heads or model.compress_ratios:
        raise UserError(
            f"model {model.name}: sliding windows, states and sparse attention are not modelled "
            "for a device by its data sheet"
        )
    if model.is_latent:
        return float(model.layers * (model.kv_lora_rank + model.qk_rope_head_dim))
    return float(2 * model.layers * model.kv_heads * model.head_dim)
