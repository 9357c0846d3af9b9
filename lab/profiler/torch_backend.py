"""PyTorch's kernels on the device at hand, timed warm and with a cold cache.

The only module that imports torch. Three ways to time a call, and a column says which was used:

- `events`: one call between two CUDA events, launched from an idle host, so that dispatch shows:
  how the fp32 tables of the reference folder were timed;
- `graph`: a CUDA graph of many calls, replayed: how kernels of engines are timed;
- `clock`: on a CPU, the host's clock around one call or a loop.

Between warm calls nothing is evicted. Clocks that rise under load show in calls that follow each
other for a tenth of a second, whose last ones have a column of their own. Before a cold call a
buffer larger than the last cache is written; on a GPU the host is meanwhile ahead, so cold times
hold no dispatch. Medians of repeats.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from lab.profiler.shapes import Call
from lab.profiler.timing import Backend, alone_s, cold_s, looped_s, ramped_s
from simulators.core.errors import UserError

Run = Callable[[], object]
Meters = tuple[float | None, float | None, float | None]
"""Watts, the SMs' clock in MHz, degrees Celsius of the die; None where the board says none."""

REPEATS, FEWEST = 25, 5
"""Timed calls, and as many as even a slow call gets; cold ones are as few, for caches are large."""

SHAPE_S = 0.2
"""About so much of the budget goes to one shape; a slow call then gets fewer repeats."""

LOOP_S, MOST_LOOPED = 1e-3, 200
"""A graph replays as many calls as fill a millisecond, within reason."""

CACHE_BYTES = 256 * 2**20
"""Twice the largest L2 of a GPU in the catalog."""

FP8_SCALE = 1.0

MAKERS = ("NVIDIA ", "Tesla ", "GeForce ")

DATA_SHEETS = {
    "H100 80GB HBM3": "h100_sxm",
    "A100-SXM4-80GB": "a100_sxm",
    "A100-SXM4-40GB": "a100_sxm_40gb",
    "A100 80GB PCIe": "a100_pcie_80gb",
    "V100-SXM2-16GB": "v100_sxm",
    "V100-SXM2-32GB": "v100_sxm",
    "RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000",
}
"""Of boards whose driver calls them by other names than their data sheets do."""


@dataclass(frozen=True)
class Timed:
    """Median seconds of a call, and what the board said while it ran."""

    warm_s: float
    ramped_s: float
    cold_s: float
    repeats: int
    timing: str
    power_w: float | None
    clock_mhz: float | None
    temperature_c: float | None


def timed(backend: Backend, work: Run, *, looped: bool, board: Callable[[], Meters]) -> Timed:
    """Return how long a call takes on a backend: warm, with risen clocks, and with a cold cache."""
    first_s = median(alone_s(backend, work, 3)[1:])
    repeats = int(min(max(SHAPE_S / first_s / 3.0, FEWEST), REPEATS))
    if looped:
        loop = int(min(max(LOOP_S / first_s, 1.0), MOST_LOOPED))
        warm = looped_s(backend, work, loop, repeats)
    else:
        warm = alone_s(backend, work, repeats)
    ramped = ramped_s(backend, work, first_s)
    meters = board()
    cold = cold_s(backend, work, FEWEST)
    return Timed(median(warm), median(ramped), median(cold), repeats, backend.name, *meters)


@dataclass(frozen=True)
class Bench:
    """A device that calls can be timed on."""

    torch: Any
    device: str
    evictor: Any  # a buffer larger than the last cache

    @property
    def name(self) -> str:
        """The data sheet's name, or where it is not known, the driver's."""
        if self.device == "cpu":
            return "cpu"
        name = str(self.torch.cuda.get_device_name())
        for maker in MAKERS:
            name = name.removeprefix(maker)
        return DATA_SHEETS.get(name, name)

    def time(self, call: Call) -> Timed:
        """Return how long a call takes.

        Raises:
            RuntimeError: PyTorch cannot run it on this device, for want of memory or of a kernel.
        """
        backend: Backend = (
            _Host(self.evictor)
            if self.device == "cpu"
            else _Stream(self.torch, self.evictor, looped=call.looped)
        )
        with self.torch.inference_mode():
            return timed(backend, self.prepared(call), looped=call.looped, board=self._board)

    def prepared(self, call: Call) -> Run:
        """Return the call with its operands made."""
        s = dict(call.sizes)
        if call.op in ("prefill", "decode"):
            return self._attention(s, causal=call.op == "prefill")
        if call.op == "gemm" and call.dtype == "fp8":
            return self._scaled(s)
        torch = self.torch
        if call.op in ("gemm", "linear"):
            dtype = torch.bfloat16 if call.dtype == "bf16" else torch.float32
            x, w = self._random((s["m"], s["k"]), dtype), self._random((s["n"], s["k"]), dtype)
            bias = self._random((s["n"],), dtype) if call.op == "linear" else None
            return lambda: torch.nn.functional.linear(x, w, bias)
        if call.op == "bmm":
            x, w = (
                self._random((s["batch"], *ends)) for ends in ((s["m"], s["k"]), (s["k"], s["n"]))
            )
            return lambda: torch.bmm(x, w)
        if call.op == "conv":
            x = self._random((s["batch"], s["in_channels"], s["input_size"], s["input_size"]))
            w = self._random((s["out_channels"], s["in_channels"], *[s["kernel_size"]] * 2))
            return lambda: torch.nn.functional.conv2d(x, w, None, s["stride"], s["padding"])
        return self._vector(call.op, (s["rows"], s["cols"]))

    def _vector(self, op: str, shape: tuple[int, int]) -> Run:
        """Return a pointwise operator of one (`addu`) or two inputs, or a reduction of rows."""
        torch, functional = self.torch, self.torch.nn.functional
        x = self._random(shape).abs_().add_(0.5)  # positive, so that powers are numbers
        unary = {
            "relu": functional.relu,
            "gelu": functional.gelu,
            "tanh": torch.tanh,
            "softmax": functools.partial(functional.softmax, dim=-1),
            "ln": functools.partial(functional.layer_norm, normalized_shape=shape[1:]),
        }
        if op in unary:
            return functools.partial(unary[op], x)
        name = op.removesuffix("u")
        other = 1.5 if op.endswith("u") else torch.full_like(x, 1.5)
        return functools.partial(getattr(torch, name), x, other)

    def _attention(self, s: dict[str, int], *, causal: bool) -> Run:
        """Return PyTorch's fused attention: a whole prompt each, or one new token each."""
        bf16, keys = self.torch.bfloat16, s["isl"] + s["step"]
        q = self._random((s["batch_size"], s["num_heads"], s["isl"], s["head_dim"]), bf16)
        kv = (s["batch_size"], s["num_key_value_heads"], keys, s["head_dim"])
        return functools.partial(
            self.torch.nn.functional.scaled_dot_product_attention,
            q,
            self._random(kv, bf16),
            self._random(kv, bf16),
            is_causal=causal,
            enable_gqa=s["num_heads"] != s["num_key_value_heads"],
        )

    def _scaled(self, s: dict[str, int]) -> Run:
        """Return a product of fp8 numbers that are already scaled, per tensor."""
        fp8 = self.torch.float8_e4m3fn
        x, w = (self._random((rows, s["k"])).to(fp8) for rows in (s["m"], s["n"]))
        scale = self.torch.tensor(FP8_SCALE, device=self.device)
        return functools.partial(
            self.torch._scaled_mm, x, w.t(), scale, scale, out_dtype=self.torch.bfloat16
        )

    def _random(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return drawn numbers: power, and so the clock, depends on what is multiplied."""
        return self.torch.randn(shape, dtype=dtype or self.torch.float32, device=self.device)

    def _board(self) -> Meters:
        """Return what the board says by NVML; nothing without it."""
        if self.device == "cpu" or (nvml := _nvml()) is None:
            return None, None, None
        with contextlib.suppress(RuntimeError, nvml.NVMLError):
            cuda = self.torch.cuda
            return cuda.power_draw() / 1000.0, float(cuda.clock_rate()), float(cuda.temperature())
        return None, None, None


def open_bench(device: str) -> Bench:
    """Return the device of that name.

    Args:
        device: `cuda`, or `cpu` if that is asked for.

    Raises:
        UserError: PyTorch is not installed, or sees no GPU.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise UserError(
            f"measuring needs PyTorch ({error})\n"
            "Install it: pip install 'sweeper[measure]', or a build for your GPU from pytorch.org"
        ) from error
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"PyTorch {torch.__version__} sees no GPU on this machine\n"
            "To time its CPU instead: --device cpu"
        )
    torch.manual_seed(0)
    # The fp32 tables hold fp32 products: no rounding to tf32 on the way.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return Bench(torch, device, torch.zeros(CACHE_BYTES, dtype=torch.int8, device=device))


@functools.cache
def _nvml() -> Any:
    """Return the module that reads NVIDIA's meters, by which torch does; none if not installed."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("pynvml")
    return None


@dataclass
class _HostEvent:
    """A moment of the host's clock."""

    at_s: float = 0.0

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def seconds_to(self, later: _HostEvent) -> float:
        return later.at_s - self.at_s


class _Host:
    """A CPU: calls return when they are done."""

    name = "clock"

    def __init__(self, evictor: Any) -> None:
        self._evictor = evictor

    def synchronise(self) -> None: ...

    def event(self) -> _HostEvent:
        return _HostEvent()

    def run(self, work: Run) -> None:
        work()

    def evict(self) -> None:
        self._evictor.zero_()

    def repeated(self, work: Run, times: int) -> Run:
        def together() -> None:
            for _ in range(times):
                work()

        return together


@dataclass(frozen=True)
class _StreamEvent:
    """A moment of a GPU's stream."""

    event: Any

    def record(self) -> None:
        self.event.record()

    def seconds_to(self, later: _StreamEvent) -> float:
        return float(self.event.elapsed_time(later.event)) * 1e-3


class _Stream:
    """A GPU: calls are queued, and lie between events of its stream."""

    def __init__(self, torch: Any, evictor: Any, *, looped: bool) -> None:
        self._torch = torch
        self._evictor = evictor
        self.name = "graph" if looped else "events"

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()

    def event(self) -> _StreamEvent:
        return _StreamEvent(self._torch.cuda.Event(enable_timing=True))

    def run(self, work: Run) -> None:
        work()

    def evict(self) -> None:
        self._evictor.zero_()

    def repeated(self, work: Run, times: int) -> Run:
        """Return the replay of a graph of so many calls."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up before the capture
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(times):
                work()
        replay: Run = graph.replay
        return replay
