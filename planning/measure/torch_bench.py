"""Time PyTorch kernels, with warm and with cold caches. Torch is imported when a bench is opened.

The column `timing` names the clock of a row:

- `events`: one call between two CUDA events, launched from an idle host, dispatch included;
- `graph`: a replayed CUDA graph of many calls, as kernels of engines are timed;
- `clock`: on a CPU, the host's clock around one call or a loop.

Warm calls evict nothing. Calls that follow each other for a tenth of a second show risen clocks.
Before a cold call, a buffer larger than the last cache is written. Times are medians of repeats.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from planning.measure.shapes import Call
from simulators.core.errors import UserError

Work = Callable[[], object]
Meters = tuple[float | None, float | None, float | None]
"""Watts, SM clock in MHz, temperature in degrees Celsius; None where the GPU reports none."""

REPEATS, FEWEST = 25, 5
"""Timed calls, and the least number for slow calls and cold ones."""
SHAPE_S = 0.2
"""Time for one shape; slow calls get fewer repeats."""
LOOP_S, MOST_LOOPED = 1e-3, 200
"""A graph replays as many calls as fill a millisecond, within this limit."""
RAMP_S, MOST_RAMPED = 0.1, 2000
"""Calls follow each other this long until clocks have settled, within this limit."""
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
"""Data sheet by the driver's name of a GPU, where the names differ."""


class Event(Protocol):
    """A moment in the queue of a device."""

    def record(self) -> None:
        """Record the moment when all queued work is done."""

    def seconds_to(self, later: Any) -> float:
        """Return the time to a later moment, once both have passed."""
        ...


class Backend(Protocol):
    """A device that runs queued work in order; `name` is the value of the column `timing`."""

    name: str

    def synchronise(self) -> None:
        """Wait until all work is done."""

    def event(self) -> Event:
        """Return an event to be recorded later, so that its creation is not timed."""
        ...

    def run(self, work: Work) -> None:
        """Queue a call."""

    def evict(self) -> None:
        """Queue a write larger than the last cache."""

    def repeated(self, work: Work, times: int) -> Work:
        """Return many calls as one, without the host in between where possible."""
        ...


@dataclass(frozen=True)
class Measurement:
    """Median seconds of a call, and what the GPU reported meanwhile."""

    warm_s: float
    ramped_s: float
    cold_s: float
    repeats: int
    timing: str
    power_w: float | None
    clock_mhz: float | None
    temperature_c: float | None


def timed(
    backend: Backend, work: Work, *, looped: bool, meters: Callable[[], Meters]
) -> Measurement:
    """Time a call on a backend: warm, with risen clocks, and with a cold cache."""
    first_s = median(alone_s(backend, work, 3)[1:])
    repeats = int(min(max(SHAPE_S / first_s / 3.0, FEWEST), REPEATS))
    if looped:
        loop = int(min(max(LOOP_S / first_s, 1.0), MOST_LOOPED))
        warm = looped_s(backend, work, loop, repeats)
    else:
        warm = alone_s(backend, work, repeats)
    ramped, read = ramped_s(backend, work, first_s), meters()
    cold = cold_s(backend, work, FEWEST)
    return Measurement(median(warm), median(ramped), median(cold), repeats, backend.name, *read)


def alone_s(backend: Backend, work: Work, repeats: int) -> list[float]:
    """Return the seconds of calls that each start on an idle device."""
    seconds = []
    for _ in range(repeats):
        backend.synchronise()
        seconds += _between_s(backend, [work])
    return seconds


def ramped_s(backend: Backend, work: Work, first_s: float) -> list[float]:
    """Return the seconds of the last of many calls in a row, when clocks have settled."""
    count = int(min(max(RAMP_S / first_s, 4.0), MOST_RAMPED))
    return _between_s(backend, [work] * count)[-max(count // 4, 1) :]


def cold_s(backend: Backend, work: Work, repeats: int) -> list[float]:
    """Return the seconds of calls whose operands are outside the caches."""
    seconds = []
    for _ in range(repeats):
        events = [backend.event(), backend.event()]
        backend.evict()
        seconds += _recorded_s(backend, [work], events)
    return seconds


def looped_s(backend: Backend, work: Work, loop: int, repeats: int) -> list[float]:
    """Return the seconds of one call within a loop."""
    together = backend.repeated(work, loop)
    backend.run(together)
    return [seconds / loop for seconds in _between_s(backend, [together] * repeats)]


def _between_s(backend: Backend, works: Sequence[Work]) -> list[float]:
    """Return the seconds of each of several calls in a row."""
    return _recorded_s(backend, works, [backend.event() for _ in range(len(works) + 1)])


def _recorded_s(backend: Backend, works: Sequence[Work], events: Sequence[Event]) -> list[float]:
    events[0].record()
    for work, event in zip(works, events[1:], strict=True):
        backend.run(work)
        event.record()
    backend.synchronise()
    return [start.seconds_to(end) for start, end in itertools.pairwise(events)]


@dataclass(frozen=True)
class Bench:
    """A device on which calls can be timed."""

    torch: Any
    device: str
    evictor: Any  # a buffer larger than the last cache

    @property
    def name(self) -> str:
        """Name of the data sheet, or the driver's name for unknown GPUs."""
        if self.device == "cpu":
            return "cpu"
        name = str(self.torch.cuda.get_device_name())
        for maker in MAKERS:
            name = name.removeprefix(maker)
        return DATA_SHEETS.get(name, name)

    def time(self, call: Call) -> Measurement:
        """Time a call.

        Raises:
            RuntimeError: PyTorch cannot run it here, for want of memory or of a kernel.
        """
        backend: Backend = _Host(self.evictor)
        if self.device != "cpu":
            backend = _Stream(self.torch, self.evictor, looped=call.looped)
        with self.torch.inference_mode():
            work = self.prepared(call)
            return timed(backend, work, looped=call.looped, meters=self._meters)

    def prepared(self, call: Call) -> Work:
        """Return the call with its operands allocated."""
        s, torch = dict(call.sizes), self.torch
        if call.op in ("prefill", "decode"):
            return self._attention(s, causal=call.op == "prefill")
        if call.op == "gemm" and call.dtype == "fp8":
            return self._scaled_product(s)
        if call.op in ("gemm", "linear"):
            dtype = torch.bfloat16 if call.dtype == "bf16" else torch.float32
            x, w = self._random((s["m"], s["k"]), dtype), self._random((s["n"], s["k"]), dtype)
            bias = self._random((s["n"],), dtype) if call.op == "linear" else None
            return lambda: torch.nn.functional.linear(x, w, bias)
        if call.op == "bmm":
            x = self._random((s["batch"], s["m"], s["k"]))
            w = self._random((s["batch"], s["k"], s["n"]))
            return lambda: torch.bmm(x, w)
        if call.op == "conv":
            x = self._random((s["batch"], s["in_channels"], s["input_size"], s["input_size"]))
            w = self._random((s["out_channels"], s["in_channels"], *[s["kernel_size"]] * 2))
            return lambda: torch.nn.functional.conv2d(x, w, None, s["stride"], s["padding"])
        return self._vector(call.op, (s["rows"], s["cols"]))

    def _vector(self, op: str, shape: tuple[int, int]) -> Work:
        """Return a pointwise operator with one (`addu`) or two inputs, or a reduction of rows."""
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
        other = 1.5 if op.endswith("u") else torch.full_like(x, 1.5)
        return functools.partial(getattr(torch, op.removesuffix("u")), x, other)

    def _attention(self, s: dict[str, int], *, causal: bool) -> Work:
        """Return PyTorch's fused attention: whole prompts, or one new token per request."""
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

    def _scaled_product(self, s: dict[str, int]) -> Work:
        """Return a product of fp8 numbers with one scale per tensor."""
        fp8, torch = self.torch.float8_e4m3fn, self.torch
        x, w = (self._random((rows, s["k"])).to(fp8) for rows in (s["m"], s["n"]))
        scale = torch.tensor(FP8_SCALE, device=self.device)
        return lambda: torch._scaled_mm(x, w.t(), scale, scale, out_dtype=torch.bfloat16)

    def _random(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return random numbers: power, and so the clock, depends on the operands."""
        return self.torch.randn(shape, dtype=dtype or self.torch.float32, device=self.device)

    def _meters(self) -> Meters:
        """Return what NVML reports; nothing without it."""
        if self.device == "cpu" or (nvml := _nvml()) is None:
            return None, None, None
        with contextlib.suppress(RuntimeError, nvml.NVMLError):
            cuda = self.torch.cuda
            return cuda.power_draw() / 1000.0, float(cuda.clock_rate()), float(cuda.temperature())
        return None, None, None


def open_bench(device: str) -> Bench:
    """Return the device `cuda` or `cpu`.

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
    # fp32 products without rounding to tf32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return Bench(torch, device, torch.zeros(CACHE_BYTES, dtype=torch.int8, device=device))


@functools.cache
def _nvml() -> Any:
    """Return the module that reads NVIDIA's meters, which torch uses; None if not installed."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("pynvml")
    return None


@dataclass
class _HostEvent:
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

    def run(self, work: Work) -> None:
        work()

    def evict(self) -> None:
        self._evictor.zero_()

    def repeated(self, work: Work, times: int) -> Work:
        def together() -> None:
            for _ in range(times):
                work()

        return together


@dataclass(frozen=True)
class _StreamEvent:
    event: Any

    def record(self) -> None:
        self.event.record()

    def seconds_to(self, later: _StreamEvent) -> float:
        return float(self.event.elapsed_time(later.event)) * 1e-3


class _Stream:
    """A GPU: calls are queued between events of its stream."""

    def __init__(self, torch: Any, evictor: Any, *, looped: bool) -> None:
        self._torch = torch
        self._evictor = evictor
        self.name = "graph" if looped else "events"

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()

    def event(self) -> _StreamEvent:
        return _StreamEvent(self._torch.cuda.Event(enable_timing=True))

    def run(self, work: Work) -> None:
        work()

    def evict(self) -> None:
        self._evictor.zero_()

    def repeated(self, work: Work, times: int) -> Work:
        """Return the replay of a graph of many calls."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries initialise before the capture
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(times):
                work()
        replay: Work = graph.replay
        return replay
