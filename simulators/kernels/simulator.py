"""Latency, energy and utilization of one operator on one GPU.

A point names an operator and its sizes; sizes that the operator lacks are ignored. Four scales turn
a real GPU into a what-if GPU.

A product may have a chosen schedule instead of the tile that the library selects: rows and columns
of a block's tile, and the number of shares of k. Compilers that search for schedules (Ansor, Zheng
et al., OSDI 2020; TLP, Zhai et al., ASPLOS 2023) rank such choices by a cost model; here the tile
model of `tiling.py` ranks them. The efficiency of a tile's inner loop is that of the tabulated tile
with the nearest shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.gpu import GPU_SCALES, Gpu, load_gpu, what_if
from simulators.core.columns import equal_row_groups, numbers, outcome, shares_of
from simulators.core.contract import choice, metric
from simulators.core.errors import UserError
from simulators.core.fields import check_batch
from simulators.core.folder import GPUS
from simulators.core.jit import Floats
from simulators.evidence.lookup import (
    BEST,
    DEFAULT_FRAMEWORK,
    FRAMEWORKS,
    LEVELS,
    files_behind,
    notes_on,
)
from simulators.kernels.corrections import LATENT_WIDTH
from simulators.kernels.energy import power_w
from simulators.kernels.families.attention import LATENT_DECODE_DIM, LATENT_PREFILL_DIM
from simulators.kernels.families.gemm import CONVOLUTION_SIZES
from simulators.kernels.levels import profile_of
from simulators.kernels.price import Level, Priced, flops, moved_bytes, price, price_call, warm_up
from simulators.kernels.profile import GemmRates, ProductRates, Profile, TensorRates
from simulators.kernels.tiling import Tile
from simulators.workload import operators
from simulators.workload.operators import Compute
from simulators.workload.precision import BYTES, PRECISIONS

R = TypeVar("R", bound=ProductRates)

Columns = Mapping[str, Floats]
Group = Mapping[str, Any]


@dataclass(frozen=True)
class Op:
    """An operator that a point may name."""

    sizes: tuple[str, ...]  # its size columns; each must be positive
    build: Callable[[str, Group, Columns], Compute]


def _product(op: str, group: Group, sizes: Columns) -> Compute:
    batch = sizes["batch"] if op in ("gemm", "bmm") else np.ones_like(sizes["m"])
    lengths: dict[str, Any] = {name: sizes[name] for name in PRODUCT}
    weight_dtype = group["weight_dtype"] or ""
    return operators.Gemm(
        name=op, **lengths, batch=batch, dtype=group["dtype"], weight_dtype=weight_dtype
    )


def _experts(op: str, group: Group, sizes: Columns) -> Compute:
    return operators.GroupedGemm(
        name=op,
        tokens=sizes["m"],
        n=sizes["n"],
        k=sizes["k"],
        dtype=group["dtype"],
        weight_dtype=group["weight_dtype"] or "",
        experts=max(1, int(group["experts"])),
        top_k=max(1.0, group["top_k"]),
    )


def _convolution(op: str, group: Group, sizes: Columns) -> Compute:
    lengths: dict[str, Any] = {name: sizes[name] for name in CONVOLUTION_SIZES}
    return operators.Convolution(name=op, padding=group["padding"], dtype=group["dtype"], **lengths)


def _attention(op: str, group: Group, sizes: Columns) -> operators.Attention:
    requests, past = sizes["batch"], sizes["past_tokens"]
    phase = op.rpartition("_")[2]
    new = np.ones_like(requests) if phase == "decode" else sizes["new_tokens"]
    return operators.Attention(
        name=op,
        phase=phase,
        requests=requests,
        query_tokens=requests * new,
        pairs=requests * (new * past + new * (new + 1.0) / 2.0),
        kv_tokens=requests * (past + new),
        heads=max(1.0, group["heads"]),
        kv_heads=max(1.0, group["kv_heads"]),
        head_dim=max(1.0, group["head_dim"]),
        dtype=group["dtype"],
        kv_dtype=group["dtype"],
    )


def _latent_attention(op: str, group: Group, sizes: Columns) -> Compute:
    plain = _attention(op, group, sizes)
    if op.endswith("prefill"):
        return replace(plain, kv_heads=plain.heads, head_dim=LATENT_PREFILL_DIM, latent=True)
    kv_heads = LATENT_WIDTH / (2.0 * LATENT_DECODE_DIM)  # all heads share one latent
    return replace(plain, kv_heads=kv_heads, head_dim=LATENT_DECODE_DIM, latent=True)


def _encoder(op: str, group: Group, sizes: Columns) -> Compute:
    return operators.EncoderAttention(
        name=op,
        requests=sizes["batch"],
        tokens=sizes["batch"] * sizes["new_tokens"],
        heads=max(1.0, group["heads"]),
        head_dim=max(1.0, group["head_dim"]),
        dtype=group["dtype"],
    )


def _state(op: str, group: Group, sizes: Columns) -> Compute:
    phase, requests = op.rpartition("_")[2], sizes["batch"]
    tokens = requests if phase == "decode" else requests * sizes["new_tokens"]
    shared: dict[str, Any] = {"name": op, "phase": phase, "requests": requests, "tokens": tokens}
    shared["dtype"] = group["dtype"]
    if op.startswith("state_convolution"):
        return operators.CausalConvolution(channels=sizes["cols"], **shared)
    dim = max(1.0, group["head_dim"])
    return operators.StateUpdate(
        key_dim=dim,
        value_dim=dim,
        value_heads=max(1.0, group["heads"]),
        key_heads=max(1.0, group["kv_heads"]),
        **shared,
    )


def _table(operator: type, op: str, group: Group, sizes: Columns, **more: Any) -> Compute:
    table: dict[str, Any] = {"rows": sizes["rows"], "cols": sizes["cols"], **more}
    built: Compute = operator(name=op, dtype=group["dtype"], **table)
    return built


def _pointwise(reads: float, op: str, group: Group, sizes: Columns) -> Compute:
    elements = sizes["rows"] * sizes["cols"]
    return operators.Elementwise(name=op, elements=elements, reads=reads, dtype=group["dtype"])


PRODUCT = ("m", "n", "k")
HEADS = ("heads", "kv_heads", "head_dim")
TABLE = ("rows", "cols")

PRODUCTS = {
    "gemm": Op(("batch", *PRODUCT), _product),
    "linear": Op(PRODUCT, _product),
    "bmm": Op(("batch", *PRODUCT), _product),
    "lm_head": Op(PRODUCT, _product),
    "grouped_gemm": Op((*PRODUCT, "experts", "top_k"), _experts),
    "conv": Op(CONVOLUTION_SIZES, _convolution),
    "attention_prefill": Op(("batch", "new_tokens", *HEADS), _attention),
    "attention_decode": Op(("batch", *HEADS), _attention),
    "latent_attention_prefill": Op(("batch", "new_tokens", "heads"), _latent_attention),
    "latent_attention_decode": Op(("batch", "heads"), _latent_attention),
}
AUXILIARY = {
    "state_convolution_prefill": Op(("batch", "new_tokens", "cols"), _state),
    "state_convolution_decode": Op(("batch", "cols"), _state),
    "state_update_prefill": Op(("batch", "new_tokens", *HEADS), _state),
    "state_update_decode": Op(("batch", *HEADS), _state),
    "quantise": Op(TABLE, partial(_table, operators.Quantisation)),
    "quantise_scan": Op(TABLE, partial(_table, operators.Quantisation, scan=True)),
    "encoder_attention": Op(("batch", "new_tokens", "heads", "head_dim"), _encoder),
}
"""Column `batch` holds requests, `new_tokens` the tokens per request, `cols` the channels."""

STREAMS = {
    "embedding": Op(TABLE, partial(_table, operators.Embedding)),
    **{
        name: Op(TABLE, partial(_table, operators.Norm, kind=kind))
        for name, kind in (
            ("softmax", "softmax"),
            ("layer_norm", "layer_norm"),
            ("ln", "layer_norm"),
            ("rms_norm", "rms_norm"),
            ("sampling", "softmax"),
        )
    },
    **{name: Op(TABLE, partial(_pointwise, 2.0)) for name in ("add", "mul", "div", "pow")},
    **{
        name: Op(TABLE, partial(_pointwise, 1.0))
        for name in ("addu", "mulu", "divu", "powu", "relu", "gelu", "tanh")
    },
}
"""Operators bound by memory, in any precision. Sampling a token takes a pass over its logits, like
a softmax. A trailing `u` of a pointwise operator means one input and a constant."""

OPS = PRODUCTS | AUXILIARY | STREAMS
FORMATS = tuple(dict.fromkeys((*PRECISIONS, *BYTES)))

NAMES = ("gpu", "op", "dtype", "weight_dtype", "information", "framework")
WHOLE = ("heads", "kv_heads", "head_dim", "experts", "top_k", "padding")
"""Sizes that an operator holds as one number for all rows."""
SCHEDULE = ("tile_m", "tile_n", "split_k")
GROUPED_BY = (*NAMES, *WHOLE, "isolated", *GPU_SCALES, *SCHEDULE)
"""Columns by which rows are grouped: one call prices the rows of a group."""


REGISTER_BYTES = {"nvidia": 262_144.0, "amd": 524_288.0}
"""Registers of an SM: 65,536 of 32 bits since Kepler (CUDA programming guide); of a CU of CDNA
(AMD, "CDNA architecture")."""

LEAST_K = 8.0
"""Smallest number of elements of k per loaded strip, as in fp32 kernels."""

BUFFERS = 2.0
"""Strips of k in shared memory: one is multiplied while the next one is loaded."""


@dataclass(frozen=True)
class Schedule:
    """Tile and split of a product; 0: the library's choice."""

    tile_m: int = 0
    tile_n: int = 0
    split_k: int = 0

    @property
    def is_chosen(self) -> bool:
        """Whether the user chose any value."""
        return self != Schedule()

    def refusal(self, gpu: Gpu, dtype: str) -> str:
        """Return why an SM cannot run a block with this tile, or an empty string."""
        if self.tile_m <= 0 or self.tile_n <= 0 or self.split_k < 0:
            return "tile_incomplete: tile_m and tile_n are chosen together; split_k goes with them"
        if not gpu.validated or gpu.vendor not in REGISTER_BYTES:
            return f"tile_unknown: kernels on {gpu.name} were never measured"
        sums, registers = 4.0 * self.tile_m * self.tile_n, REGISTER_BYTES[gpu.vendor]
        if sums >= registers:
            return f"tile_exceeds_registers: sums take {sums:,.0f} bytes of {registers:,.0f}"
        strips = BUFFERS * (self.tile_m + self.tile_n) * LEAST_K * BYTES[dtype]
        if strips > gpu.sram_bytes_per_sm:
            return f"tile_exceeds_sram: strips take {strips:,.0f} of {gpu.sram_bytes_per_sm:,.0f}"
        return ""


def with_schedule(profile: Profile, schedule: Schedule) -> Profile:
    """Return a profile in which all products use one schedule."""
    gemm: dict[str, GemmRates] = {n: _with_tile(r, schedule) for n, r in profile.gemm.items()}
    tensor: dict[str, TensorRates] = {n: _with_tile(r, schedule) for n, r in profile.tensor.items()}
    return replace(profile, gemm=gemm, tensor=tensor)


def _with_tile(rates: R, schedule: Schedule) -> R:
    """Return rates with a single tile; without a chosen split, with each split of the library."""
    near = min(rates.tiles, key=lambda tile: _distance(tile, schedule))
    splits = {tile.splits for tile in rates.tiles}
    chosen = (schedule.split_k,) if schedule.split_k else tuple(sorted(splits))
    m, n = schedule.tile_m, schedule.tile_n
    return replace(rates, tiles=tuple(Tile(m, n, near.efficiency, s) for s in chosen))


def _distance(tile: Tile, schedule: Schedule) -> tuple[float, float]:
    """Return the distance of a tile from a schedule, in octaves of its sides, then of its area."""
    m, n = math.log2(tile.m / schedule.tile_m), math.log2(tile.n / schedule.tile_n)
    return abs(m) + abs(n), abs(m + n)


_size = partial(choice, given=True, at_least=0, at_most=1 << 31)
_tile = partial(choice, default=0, at_least=0, at_most=4096)
_scale = partial(choice, default=1.0, at_least=1 / 64, at_most=64)


@dataclass(frozen=True)
class KernelPoint:
    """An operator, its sizes and a GPU."""

    gpu: str = choice("the GPU, or the path of a data sheet of your own", names="gpu")
    op: str = choice(f"the operator: {', '.join(OPS)}", known=tuple(OPS), given=True)
    dtype: str = choice(
        f"precision of the operands: {', '.join(PRECISIONS)}", default="fp16", known=FORMATS
    )
    weight_dtype: str = choice(
        "precision of stored weights, if narrower", default="", known=("", *BYTES)
    )
    batch: int = _size("products in a batched GEMM; requests in attention", default=1)
    m: int = _size("rows of the result; tokens", default=1)
    n: int = _size("columns of the result", default=1)
    k: int = _size("length of the inner products", default=1)
    rows: int = _size("rows of an elementwise operator, norm, softmax or embedding", default=1)
    cols: int = _size("numbers in each of them", default=1)
    heads: int = _size("query heads on this GPU", default=1, at_most=1 << 16)
    kv_heads: int = _size("key and value heads on this GPU", default=1, at_most=1 << 16)
    head_dim: int = _size("numbers per head", default=128, at_most=1 << 16)
    new_tokens: int = _size("query tokens per request in prefill", default=1)
    past_tokens: int = _size("tokens per request already in the KV cache", default=0)
    experts: int = _size("experts on this GPU", default=1, at_most=1 << 16)
    top_k: int = _size("experts each token is routed to", default=1, at_most=1 << 16)
    in_channels: int = _size("channels of a convolution's images", default=1)
    out_channels: int = _size("filters of a convolution", default=1)
    kernel_size: int = _size("side of a convolution's filters", default=1, at_most=1 << 16)
    input_size: int = _size("side of a convolution's images", default=1, at_most=1 << 16)
    stride: int = _size("step of a convolution's filters", default=1, at_most=1 << 16)
    padding: int = _size("zeros around a convolution's images", default=0, at_most=1 << 16)
    information: str = choice(
        "level of information: zero_shot, few_shot, full, or best of what there is",
        default=BEST,
        known=(*LEVELS, BEST),
        given=True,
    )
    framework: str = choice(
        f"kernel library: {', '.join(FRAMEWORKS)}; others substitute for missing kernels",
        default=DEFAULT_FRAMEWORK,
        known=FRAMEWORKS,
    )
    tile_m: int = _tile("rows of a product's tile; 0: the library's choice")
    tile_n: int = _tile("columns of a product's tile; 0: the library's choice")
    split_k: int = _tile("splits of k with a chosen tile; 0: the fastest")
    isolated: bool = choice(
        "timed alone from the host, dispatch included", default=False, given=True
    )
    sm_scale: float = _scale("SMs of a what-if device, relative")
    clock_scale: float = _scale("clock of a what-if device, relative")
    bandwidth_scale: float = _scale("memory bandwidth of a what-if device, relative")
    l2_scale: float = _scale("L2 size of a what-if device, relative")


_time = partial(metric, unit="s", page="kernels.md#latency")
_energy = partial(metric, unit="J", page="kernels.md#energy-of-a-launch")
_work = partial(metric, page="kernels.md#work")


@dataclass(frozen=True)
class KernelMetrics:
    """Latency, energy, work and utilization of one launch."""

    latency_s: float = _time("time of one launch", better="min")
    latency_s_lo: float = _time("lower end of its 90 % interval")
    latency_s_hi: float = _time("upper end of its 90 % interval")
    energy_j: float = _energy("energy of the GPU during the launch", better="min")
    energy_j_lo: float = _energy("lower end of its 90 % interval")
    energy_j_hi: float = _energy("upper end of its 90 % interval")
    flops: float = _work("arithmetic asked for, without padding")
    bytes: float = _work("bytes of inputs and outputs, each once", unit="B")
    mfu: float = _work("achieved over peak FLOP/s of the precision")


@dataclass(frozen=True)
class Kernels:
    """The kernel simulator."""

    name: str = "kernels"
    version: int = 25
    point: type = KernelPoint
    metrics: type = KernelMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Price every row; rows with the same GPU, operator and precision are priced together."""
        check_batch(KernelPoint, batch)
        rows = batch.num_rows
        out = {name: np.full(rows, np.nan) for name in KernelMetrics.__dataclass_fields__}
        reasons = np.full(rows, "", object)
        level = np.zeros(rows, np.int64)
        used = {name for op in OPS.values() for name in op.sizes} | {"past_tokens"}
        sizes = {name: numbers(batch, name).astype(np.float64) for name in sorted(used)}
        for where, named in equal_row_groups(batch, GROUPED_BY):
            group = _with_formats(named)
            local = {name: column[where] for name, column in sizes.items()}
            gpu = what_if(load_gpu(group["gpu"]), **{scale: group[scale] for scale in GPU_SCALES})
            if group["op"] not in STREAMS and group["dtype"] not in gpu.peak_flops:
                lacks = f"gpu '{gpu.name}' has no {group['dtype']} rate"
                has = ", ".join(gpu.peak_flops)
                reasons[where] = f"dtype_not_supported: {lacks}, it has {has}"
                continue
            schedule = Schedule(*(int(group[name]) for name in SCHEDULE))
            if schedule.is_chosen and (why := _refusal(schedule, group, gpu)):
                reasons[where] = why
                continue
            columns, priced = _price_group(group, local, gpu, schedule)
            for name, column in columns.items():
                out[name][where] = column
            level[where] = priced.level
            reasons[where] = _impossible(group, local, columns["bytes"], gpu)
        return outcome(KernelMetrics, out, infeasible=list(reasons), shares=shares_of(level))

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """Return the data sheet of a point's GPU and all calibrations behind its rates."""
        if name != "gpu":
            return ()
        return (GPUS.find(str(value)), *files_behind(load_gpu(str(value))))

    def notes(self, axes: Mapping[str, Sequence[Any]]) -> Sequence[str]:
        """Return notes on GPUs without measurements."""
        return notes_on(axes["gpu"])

    def warm_up(self) -> None:
        """Compile the tile model and the corrections."""
        warm_up()


SIMULATOR = Kernels()


def _with_formats(group: Group) -> Group:
    """Return a group in which formats replace the name of a precision."""
    if group["dtype"] is None:
        raise UserError("dtype is missing; it names the precision of the operands, such as fp16")
    how = PRECISIONS.get(group["dtype"])
    if how is None:
        return group
    narrow = how.weights if BYTES[how.weights] != BYTES[how.compute] else ""
    return {**group, "dtype": how.compute, "weight_dtype": group["weight_dtype"] or narrow}


def _impossible(group: Group, sizes: Columns, moved: Floats, gpu: Gpu) -> NDArray[Any]:
    """Return the reason of each row that cannot exist; empty for other rows."""
    op, has = OPS[group["op"]], gpu.hbm_bytes
    image = sizes["input_size"] + 2.0 * group["padding"]
    is_grouped = "kv_heads" in op.sizes and (
        group["kv_heads"] > group["heads"] or group["heads"] % max(1, group["kv_heads"]) != 0
    )
    is_routed = "top_k" in op.sizes and group["top_k"] > group["experts"]
    is_filtered = ("kernel_size" in op.sizes) & (sizes["kernel_size"] > image)
    is_positive = np.all([sizes[name] > 0 for name in op.sizes], axis=0)
    reasons = np.full(moved.shape, "", object)
    reasons[moved > has] = f"operands_exceed_memory: {gpu.name} has {has / 1e9:.0f} GB"
    reasons[is_filtered] = "filter_exceeds_image: kernel_size above input_size and its padding"
    if is_routed:
        reasons[:] = f"top_k_exceeds_experts: {group['top_k']} of {group['experts']} experts"
    if is_grouped:
        reasons[:] = f"kv_heads_do_not_divide_heads: {group['kv_heads']} of {group['heads']} heads"
    reasons[~is_positive] = "size_not_positive"
    return reasons


def _refusal(schedule: Schedule, group: Group, gpu: Gpu) -> str:
    if OPS[group["op"]].build is not _product:
        return f"op_has_no_tile: {group['op']}"
    return schedule.refusal(gpu, group["dtype"])


def _price_group(
    group: Group, sizes: Columns, gpu: Gpu, schedule: Schedule
) -> tuple[dict[str, NDArray[np.float64]], Priced]:
    """Return the metrics of a group of rows, as columns, and their evidence."""
    name = str(group["op"])
    sizes = {name: np.maximum(size, 1.0) for name, size in sizes.items()}
    operator = OPS[name].build(name, group, sizes)
    level: Level = str(group["information"])
    framework = DEFAULT_FRAMEWORK if group["isolated"] else str(group["framework"])
    if schedule.is_chosen:
        level = with_schedule(profile_of(gpu, str(level), framework), schedule)
    if group["isolated"]:
        priced = price_call(operator, gpu, level)
    else:
        priced = price(operator, gpu, level, framework)
    watts, work = power_w(operator, gpu, priced.latency_s), flops(operator)
    peak = gpu.peak_flops.get(group["dtype"], gpu.peak_flops["fp32"])
    columns = {
        "latency_s": priced.latency_s,
        "latency_s_lo": priced.lo_s,
        "latency_s_hi": priced.hi_s,
        "energy_j": watts * priced.latency_s,
        "energy_j_lo": watts * priced.lo_s,
        "energy_j_hi": watts * priced.hi_s,
        "flops": work,
        "bytes": moved_bytes(operator),
        "mfu": work / (peak * priced.latency_s),
    }
    return columns, replace(priced, extrapolated=True) if schedule.is_chosen else priced
