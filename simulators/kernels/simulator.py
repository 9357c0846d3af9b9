"""One operator on one GPU: seconds, joules and the share of the peak that is reached.

Points name an operator and the sizes it has; sizes it does not have are ignored. The four scales
make what-if devices of real ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simulators.catalog.gpu import Gpu, load_gpu, what_if
from simulators.core.columns import categories, numbers, outcome
from simulators.core.contract import choice, metric
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import GPUS
from simulators.kernels.energy import power_w
from simulators.kernels.families.auxiliary_kernels import (
    CausalConvolution,
    EncoderAttention,
    Quantisation,
    Side,
    StateUpdate,
)
from simulators.kernels.families.convolution import Convolution
from simulators.kernels.frameworks import DEFAULT_FRAMEWORK
from simulators.kernels.levels import BEST, boards, files_behind
from simulators.kernels.price import Kernel, Priced, flops, moved_bytes, price, price_call
from simulators.workload.operators import (
    BYTES,
    Attention,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
)

Columns = dict[str, NDArray[np.float64]]

POINTWISE = {
    "add": 2.0, "mul": 2.0, "div": 2.0, "pow": 2.0,
    "addu": 1.0, "mulu": 1.0, "divu": 1.0, "powu": 1.0,
    "relu": 1.0, "gelu": 1.0, "tanh": 1.0,
}  # fmt: skip
"""Pointwise operators by the number of inputs; a trailing `u` means one input and a constant."""

ROW_KINDS = {
    "softmax": "softmax",
    "layer_norm": "layer_norm",
    "ln": "layer_norm",
    "rms_norm": "rms_norm",
    "sampling": "softmax",
}
"""Operators that reduce rows; drawing a token takes a pass over its logits, as a softmax does."""

PRODUCTS = ("gemm", "linear", "bmm", "lm_head")
STATES = (
    "state_convolution_prefill", "state_convolution_decode", "state_update_prefill",
    "state_update_decode",
)  # fmt: skip
SCANS = {"quantise": False, "quantise_scan": True}
SIDES = (*STATES, *SCANS, "encoder_attention")
"""Kernels of `side.py`; requests are `batch`, tokens of each `new_tokens`, channels `cols`."""

OPS = (
    *PRODUCTS, "grouped_gemm", "conv", "attention_prefill", "attention_decode", "embedding",
    *SIDES, *ROW_KINDS, *POINTWISE,
)  # fmt: skip
SCHEMES = {
    "fp8_block": ("fp8", "fp8_block"), "w8a8": ("int8", "int8"), "w8a16": ("fp16", "int8"),
    "w4a16": ("fp16", "int4"), "nvfp4": ("fp4", "fp4"),
}  # fmt: skip
"""Usual words for formats of the multiplication and of the stored weights."""

SCALES = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
NAMES = ("gpu", "op", "dtype", "weight_dtype", "information", "framework")


@dataclass(frozen=True)
class KernelPoint:
    """One operator, its sizes, and the GPU it runs on."""

    gpu: str = choice("the GPU, or the path of a data sheet of one's own", names="gpu")
    op: str = choice(f"the operator: {', '.join(OPS)}")
    dtype: str = choice(
        f"precision of the operands, or a scheme: {', '.join(SCHEMES)}", default="fp16"
    )
    weight_dtype: str = choice("precision of stored weights, if narrower", default="")
    batch: int = choice("products in a batched GEMM; requests in attention", default=1)
    m: int = choice("rows of the result; tokens", default=1)
    n: int = choice("columns of the result", default=1)
    k: int = choice("length of the inner products", default=1)
    rows: int = choice("rows of an elementwise operator, norm, softmax or embedding", default=1)
    cols: int = choice("numbers in each of them", default=1)
    heads: int = choice("query heads on this GPU", default=1)
    kv_heads: int = choice("key and value heads on this GPU", default=1)
    head_dim: int = choice("numbers per head", default=128)
    new_tokens: int = choice("query tokens per request in prefill", default=1)
    past_tokens: int = choice("tokens per request already in the KV cache", default=0)
    experts: int = choice("experts on this GPU", default=1)
    top_k: int = choice("experts each token is routed to", default=1)
    in_channels: int = choice("channels of a convolution's images", default=1)
    out_channels: int = choice("filters of a convolution", default=1)
    kernel_size: int = choice("side of a convolution's filters", default=1)
    input_size: int = choice("side of a convolution's images", default=1)
    stride: int = choice("step of a convolution's filters", default=1)
    padding: int = choice("zeros around a convolution's images", default=0)
    information: str = choice(
        "level of information: zero_shot, few_shot, full, or best of what there is", default=BEST
    )
    framework: str = choice(
        "whose kernels run: trtllm, vllm or sglang; another's stand in where it has none",
        default=DEFAULT_FRAMEWORK,
    )
    isolated: bool = choice("timed alone from the host, dispatch included", default=False)
    sm_scale: float = choice("SMs of a what-if device, relative", default=1.0)
    clock_scale: float = choice("clock of a what-if device, relative", default=1.0)
    bandwidth_scale: float = choice("memory bandwidth of a what-if device, relative", default=1.0)
    l2_scale: float = choice("L2 size of a what-if device, relative", default=1.0)


_time = partial(metric, unit="s", page="kernels.md#latency")
_energy = partial(metric, unit="J", page="kernels.md#energy-of-a-launch")
_work = partial(metric, page="kernels.md#work")


@dataclass(frozen=True)
class KernelMetrics:
    """What a profiler would print."""

    latency_s: float = _time("time of one launch", better="min")
    latency_s_lo: float = _time("lower end of its 90 % interval")
    latency_s_hi: float = _time("upper end of its 90 % interval")
    energy_j: float = _energy("energy of the board during the launch", better="min")
    energy_j_lo: float = _energy("lower end of its 90 % interval")
    energy_j_hi: float = _energy("upper end of its 90 % interval")
    flops: float = _work("arithmetic asked for, without padding")
    bytes: float = _work("bytes of inputs and outputs, each once", unit="B")
    mfu: float = _work("achieved over peak FLOP/s of the precision")


@dataclass(frozen=True)
class Kernels:
    """The simulator of this room."""

    name: str = "kernels"
    version: int = 3
    point: type = KernelPoint
    metrics: type = KernelMetrics

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Price every row; rows of one GPU, operator and precision are priced together."""
        rows = batch.num_rows
        out = {name: np.full(rows, np.nan) for name in KernelMetrics.__dataclass_fields__}
        reasons = np.full(rows, "", object)
        flags = np.zeros((2, rows), bool)
        sizes = {name: numbers(batch, name).astype(np.float64) for name in _SIZES}
        for where, named in _groups(batch):
            group = _spelled_out(named)
            local = {name: column[where] for name, column in sizes.items()}
            _check(group)
            gpu = what_if(load_gpu(group["gpu"]), **{scale: group[scale] for scale in SCALES})
            if reason := _lacks(gpu, group):
                reasons[where] = reason
                continue
            columns, priced = _price_group(group, local, gpu)
            for name, column in columns.items():
                out[name][where] = column
            flags[0, where], flags[1, where] = priced.calibrated, priced.extrapolated
            reasons[where[~_positive(group["op"], local)]] = "size_not_positive"
        return outcome(
            KernelMetrics, out, infeasible=list(reasons), calibrated=flags[0], extrapolated=flags[1]
        )

    def reads(self, name: str, value: object) -> tuple[Path, ...]:
        """A point depends on its GPU's data sheet, and on all calibrations its rates come from."""
        if name != "gpu":
            return ()
        return (GPUS.find(str(value)), *files_behind(load_gpu(str(value)), BEST))

    def warm_up(self) -> None:
        """Compile the tile model and the corrections."""
        for board in boards():
            price(Gemm(name="warm", m=1.0, n=1.0, k=1.0, dtype="fp32"), load_gpu(board.name))


SIMULATOR = Kernels()

_SIZES = (
    "batch", "m", "n", "k", "rows", "cols", "heads", "kv_heads", "head_dim", "new_tokens",
    "past_tokens", "experts", "top_k", "in_channels", "out_channels", "kernel_size", "input_size",
    "stride",
)  # fmt: skip


def _groups(batch: pa.RecordBatch) -> list[tuple[NDArray[np.int64], dict[str, Any]]]:
    """Return row numbers and common fields of rows that one call can price."""
    if not batch.num_rows:
        return []
    named = {name: categories(batch, name) for name in NAMES}
    keys = [codes.astype(np.float64) for codes, _ in named.values()]
    keys += [numbers(batch, name).astype(np.float64) for name in (*_WHOLE, "isolated", *SCALES)]
    distinct, member = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    order = np.argsort(member.reshape(-1), kind="stable")
    ends = np.cumsum(np.bincount(member.reshape(-1), minlength=len(distinct)))
    groups = []
    for key, where in zip(distinct, np.split(order, ends[:-1]), strict=True):
        fields: dict[str, Any] = {
            name: values[int(code)]
            for (name, (_, values)), code in zip(named.items(), key, strict=False)
        }
        rest = (*_WHOLE, "isolated", *SCALES)
        fields |= dict(zip(rest, (float(x) for x in key[len(named) :]), strict=True))
        groups.append((where, fields))
    return groups


_WHOLE = ("heads", "kv_heads", "head_dim", "experts", "top_k", "padding")
"""Sizes that an operator holds as one number for a whole column."""


def _spelled_out(group: dict[str, Any]) -> dict[str, Any]:
    """Return the group with a scheme's formats in place of its name."""
    if group["dtype"] not in SCHEMES:
        return group
    dtype, weight_dtype = SCHEMES[group["dtype"]]
    return group | {"dtype": dtype, "weight_dtype": group["weight_dtype"] or weight_dtype}


def _check(group: dict[str, Any]) -> None:
    """Refuse words nothing answers to."""
    if group["op"] not in OPS:
        raise UnknownNameError("operator", str(group["op"]), OPS)
    for name in ("dtype", "weight_dtype"):
        if group[name] and group[name] not in BYTES:
            raise UnknownNameError(name, str(group[name]), BYTES)
    if group["dtype"] is None:
        raise UserError("dtype is missing; it names the precision of the operands, such as fp16")


def _lacks(gpu: Gpu, group: dict[str, Any]) -> str:
    """Say why this GPU cannot run the operator, if so."""
    arithmetic = group["op"] not in (*POINTWISE, *ROW_KINDS, "embedding")
    if arithmetic and group["dtype"] not in gpu.peak_flops:
        has = ", ".join(gpu.peak_flops)
        return f"dtype_unsupported: gpu '{gpu.name}' has no {group['dtype']} rate, it has {has}"
    return ""


def _positive(op: str, sizes: Columns) -> NDArray[np.bool_]:
    """Say which rows have sizes that exist."""
    used = {
        "bmm": ("batch", "m", "n", "k"),
        "gemm": ("batch", "m", "n", "k"),
        "linear": ("m", "n", "k"),
        "lm_head": ("m", "n", "k"),
        "state_convolution_prefill": ("batch", "new_tokens", "cols"),
        "state_convolution_decode": ("batch", "cols"),
        "state_update_prefill": ("batch", "new_tokens", "heads", "kv_heads", "head_dim"),
        "state_update_decode": ("batch", "heads", "kv_heads", "head_dim"),
        "encoder_attention": ("batch", "new_tokens", "heads", "head_dim"),
        "grouped_gemm": ("m", "n", "k", "experts", "top_k"),
        "conv": ("batch", "in_channels", "out_channels", "kernel_size", "input_size", "stride"),
        "attention_prefill": ("batch", "new_tokens", "heads", "kv_heads", "head_dim"),
        "attention_decode": ("batch", "heads", "kv_heads", "head_dim"),
    }.get(op, ("rows", "cols"))
    positive: NDArray[np.bool_] = np.all([sizes[name] > 0 for name in used], axis=0)
    return positive


def _price_group(
    group: dict[str, Any], sizes: Columns, gpu: Gpu
) -> tuple[dict[str, NDArray[np.float64]], Priced]:
    """Return the metrics of rows that share GPU, operator and precision."""
    operator = operator_of(group, {name: np.maximum(size, 1.0) for name, size in sizes.items()})
    level = str(group["information"])
    if group["isolated"]:
        priced = price_call(operator, gpu, level)
    else:
        priced = price(operator, gpu, level, str(group["framework"]))
    latency_s, lo_s, hi_s = priced.latency_s, priced.lo_s, priced.hi_s
    watts = power_w(operator, gpu, latency_s)
    work = flops(operator)
    peak = gpu.peak_flops.get(group["dtype"], gpu.peak_flops["fp32"])
    columns = {
        "latency_s": latency_s,
        "latency_s_lo": lo_s,
        "latency_s_hi": hi_s,
        "energy_j": watts * latency_s,
        "energy_j_lo": watts * lo_s,
        "energy_j_hi": watts * hi_s,
        "flops": work,
        "bytes": moved_bytes(operator),
        "mfu": work / (peak * latency_s),
    }
    return columns, priced


def operator_of(group: dict[str, Any], sizes: Columns) -> Kernel:
    """Return the operator that rows with these common fields and sizes ask for."""
    op, dtype = group["op"], group["dtype"]
    if op in PRODUCTS:
        batch = sizes["batch"] if op in ("gemm", "bmm") else np.ones_like(sizes["m"])
        return Gemm(
            name=op, m=sizes["m"], n=sizes["n"], k=sizes["k"], batch=batch, dtype=dtype,
            weight_dtype=group["weight_dtype"] or "",
        )  # fmt: skip
    if op == "grouped_gemm":
        return GroupedGemm(
            name=op, tokens=sizes["m"], n=sizes["n"], k=sizes["k"], dtype=dtype,
            experts=max(1, int(group["experts"])), top_k=max(1.0, group["top_k"]),
        )  # fmt: skip
    if op == "conv":
        return Convolution(
            name=op, batch=sizes["batch"], in_channels=sizes["in_channels"],
            out_channels=sizes["out_channels"], kernel_size=sizes["kernel_size"],
            input_size=sizes["input_size"], stride=sizes["stride"], padding=group["padding"],
            dtype=dtype,
        )  # fmt: skip
    if op in ("attention_prefill", "attention_decode"):
        return _attention_of(group, sizes)
    if op in SIDES:
        return _side_of(group, sizes)
    if op == "embedding":
        return Embedding(name=op, rows=sizes["rows"], cols=sizes["cols"], dtype=dtype)
    if op in ROW_KINDS:
        kind = ROW_KINDS[op]
        return Norm(name=op, rows=sizes["rows"], cols=sizes["cols"], kind=kind, dtype=dtype)
    elements = sizes["rows"] * sizes["cols"]
    return Elementwise(name=op, elements=elements, reads=POINTWISE[op], dtype=dtype)


def _side_of(group: dict[str, Any], sizes: Columns) -> Side:
    op, dtype = str(group["op"]), str(group["dtype"])
    if op in SCANS:
        return Quantisation(
            name=op, rows=sizes["rows"], cols=sizes["cols"], scan=SCANS[op], dtype=dtype
        )
    phase = op.rpartition("_")[2]
    requests = sizes["batch"]
    tokens = requests if phase == "decode" else requests * sizes["new_tokens"]
    if op.startswith("state_convolution"):
        return CausalConvolution(
            name=op, phase=phase, requests=requests, tokens=tokens, channels=sizes["cols"],
            dtype=dtype,
        )  # fmt: skip
    heads, head_dim = max(1.0, group["heads"]), max(1.0, group["head_dim"])
    if op == "encoder_attention":
        return EncoderAttention(
            name=op, requests=requests, tokens=tokens, heads=heads, head_dim=head_dim, dtype=dtype
        )
    return StateUpdate(
        name=op, phase=phase, requests=requests, tokens=tokens, value_heads=heads,
        key_heads=max(1.0, group["kv_heads"]), key_dim=head_dim, value_dim=head_dim, dtype=dtype,
    )  # fmt: skip


def _attention_of(group: dict[str, Any], sizes: Columns) -> Attention:
    requests, past = sizes["batch"], sizes["past_tokens"]
    decode = group["op"] == "attention_decode"
    new = np.ones_like(requests) if decode else sizes["new_tokens"]
    return Attention(
        name=group["op"],
        phase="decode" if decode else "prefill",
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
