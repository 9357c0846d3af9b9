"""Time kernels of this machine's GPU with PyTorch and write them as Parquet.

`latency_us` is the median of warm calls, which evict nothing from the caches; `ramped_us` that of
calls that follow each other until clocks have risen; `cold_us` that of calls after a write larger
than the last cache. The columns are those of the tables that `sweeper calibrate` and the fits read.
The column `timing` names the clock of a row:

- `events`: one call between two CUDA events, launched from an idle host, dispatch included;
- `graph`: a replayed CUDA graph of many calls, as kernels of engines are timed;
- `clock`: on a CPU, the host's clock around one call or a loop.

Torch is imported when a bench is opened.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from planning.calibrate.measurements import read_table
from planning.measure.shapes import DTYPES, FAMILIES, TABLES, Call, CallFamily, calls, calls_of
from simulators.core.errors import UnknownNameError, UserError

Work = Callable[[], object]

UNLIMITED = 2**31
FORMATS = {"bf16": "bfloat16", "fp8": "fp8"}
"""Names of precisions in the reference tables of kernels."""
PRECISION_COLUMNS = {
    "gemm": ("gemm_dtype",),
    **dict.fromkeys(("prefill", "decode"), ("attn_dtype", "kv_cache_dtype")),
}
COLUMNS = pa.schema(
    [(n, pa.type_for_alias(t)) for t, names in TABLES["columns"].items() for n in names]
)
"""Columns of the file; null where an operator has no such size."""

REPEATS, MIN_REPEATS = 25, 5
"""Timed calls, and the least number for slow calls and for cold calls."""
SHAPE_S = 0.2
"""Time to spend on one shape; slow calls get fewer repeats."""
LOOP_S, MAX_LOOPED = 1e-3, 200
"""Duration of the calls of a CUDA graph, and their largest number."""
RAMP_S, MAX_RAMPED = 0.1, 2000
"""Duration of the calls in a row until clocks have settled, and their largest number."""
CACHE_BYTES = 256 * 2**20
"""Twice the largest L2 of a GPU in the catalog."""
MAKERS = ("NVIDIA ", "Tesla ", "GeForce ")


def measure(
    file: Path,
    *,
    ops: Sequence[str] = tuple(FAMILIES),
    dtypes: Sequence[str] = ("fp32", "bf16"),
    seconds: float = 60.0,
    shapes: int | None = None,
    largest: int = UNLIMITED,
    rows: Path | None = None,
    device: str = "cuda",
    gpu: str = "",
) -> tuple[str, Counter[str], Counter[str]]:
    """Time calls until the time is spent, and write a row per call.

    Args:
        file: Parquet file.
        ops: families of operators, of `FAMILIES`.
        dtypes: precisions, of `DTYPES`.
        seconds: time to spend.
        shapes: calls of each family; None for as many as fit.
        largest: no size above this.
        rows: a file with the fp32 calls to time instead of families.
        device: `cuda` or `cpu`.
        gpu: name of the data sheet; empty for the driver's name of the GPU.

    Returns:
        The GPU's name, the number of rows by operator, and of failed calls by reason.

    Raises:
        UserError: a name is unknown, there is no PyTorch or GPU, or no call could be timed.
    """
    if not file.resolve().parent.is_dir():
        raise UserError(f"{file}: the folder {file.parent} does not exist")
    if rows is not None:
        some = calls_of(read_table(rows, ("op",)), rows)
    else:
        families = families_of(ops, dtypes)
        some = itertools.islice(calls(families, largest), shapes and shapes * len(families))
    bench = open_bench(device)
    name = gpu or bench.name
    found, failed = measured_rows(bench, some, name, seconds)
    if not found:
        raise UserError("no call could be timed; try more --seconds, or a smaller --largest")
    pa.parquet.write_table(pa.Table.from_pylist(found, schema=COLUMNS), file)
    return name, Counter(str(row["op"]) for row in found), failed


def families_of(ops: Sequence[str], dtypes: Sequence[str]) -> tuple[CallFamily, ...]:
    """Return the families of calls to time, by name and precision.

    >>> [family.ops for family in families_of(["attention"], ["bf16"])]
    [('prefill',), ('decode',)]

    Raises:
        UserError: a family or precision is unknown, or none of the families has the precision.
    """
    for kind, names, known in (("family", ops, tuple(FAMILIES)), ("precision", dtypes, DTYPES)):
        for name in names:
            if name not in known:
                raise UnknownNameError(kind, name, known)
    found = tuple(d for op in dict.fromkeys(ops) for d in FAMILIES[op] if d.dtype in dtypes)
    if not found:
        have = "; ".join(
            f"{op} in {', '.join(dict.fromkeys(d.dtype for d in FAMILIES[op]))}" for op in ops
        )
        raise UserError(f"nothing to time in {', '.join(dtypes)}: there is {have}")
    return found


def measured_rows(
    bench: Bench, some: Iterable[Call], name: str, seconds: float
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return one row per call timed within the budget, and the number of failures by reason."""
    rows: list[dict[str, Any]] = []
    failed: Counter[str] = Counter()
    labels = {
        "gpu": name,
        "framework": "pytorch",
        "version": str(bench.torch.__version__),
        "kernel": "pytorch",
        "split": "train",  # evenly spread shapes, not those of a model's layers
    }
    end = time.monotonic() + seconds
    for call in some:
        if time.monotonic() >= end:
            break
        try:
            measured = bench.time(call)
        except RuntimeError as error:
            failed[f"{call.op} {call.dtype}: {str(error).splitlines()[0]}"] += 1
            continue
        precisions = dict.fromkeys(PRECISION_COLUMNS.get(call.op, ()), FORMATS.get(call.dtype))
        rows.append({**labels, "op": call.op, "dtype": call.dtype, **precisions})
        rows[-1] |= {**call.sizes, **measured}
    return rows, failed


class HostEvent:
    """A moment of the host's clock, with the methods of `torch.cuda.Event`."""

    at_s = 0.0

    def record(self) -> None:
        """Record the moment."""
        self.at_s = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        """Return the milliseconds to a later event."""
        return 1e3 * (end.at_s - self.at_s)


@dataclass(frozen=True)
class Bench:
    """A device on which calls can be timed: a GPU, or a CPU, where calls return when done."""

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
        return str(TABLES["data_sheets"].get(name, name))

    def time(self, call: Call) -> dict[str, Any]:
        """Time a call, and return the measured columns of its row.

        Raises:
            RuntimeError: PyTorch cannot run the call here, for want of memory or of a kernel.
        """
        with self.torch.inference_mode():
            return timed(self, self.prepared(call), looped=call.looped)

    def timing(self, *, looped: bool) -> str:
        """Return the value of the column `timing`."""
        return "clock" if self.device == "cpu" else "graph" if looped else "events"

    def synchronise(self) -> None:
        """Wait until all queued calls are done."""
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def event(self) -> Any:
        """Return an event to be recorded later, so that its creation is not timed."""
        return HostEvent() if self.device == "cpu" else self.torch.cuda.Event(enable_timing=True)

    def evict(self) -> None:
        """Queue a write larger than the last cache."""
        self.evictor.zero_()

    def repeated(self, work: Work, times: int) -> Work:
        """Return many calls as one: a loop, or the replay of a CUDA graph."""

        def loop(times: int = times) -> None:
            for _ in range(times):
                work()

        if self.device == "cpu":
            return loop
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # libraries initialise before the capture
            loop(3)
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            loop()
        replay: Work = graph.replay
        return replay

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
        """Return PyTorch's fused attention of whole prompts, or of one new token per request."""
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
        fp8, torch = self.torch.float8_e4m3fn, self.torch
        x, w = (self._random((rows, s["k"])).to(fp8) for rows in (s["m"], s["n"]))
        scale = torch.tensor(1.0, device=self.device)
        return lambda: torch._scaled_mm(x, w.t(), scale, scale, out_dtype=torch.bfloat16)

    def _random(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return random numbers: power, and so the clock, depends on the values."""
        return self.torch.randn(shape, dtype=dtype or self.torch.float32, device=self.device)

    def meters(self) -> dict[str, float]:
        """Return power, clock and temperature of the GPU; empty without NVML."""
        if self.device == "cpu":
            return {}
        try:
            nvml = importlib.import_module("pynvml")  # which torch uses
        except ImportError:
            return {}
        with contextlib.suppress(RuntimeError, nvml.NVMLError):
            cuda = self.torch.cuda
            return {
                "power_w": cuda.power_draw() / 1000.0,
                "clock_mhz": float(cuda.clock_rate()),
                "temperature_c": float(cuda.temperature()),
            }
        return {}


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
            "Install it: pip install 'mlsweeper[measure]', or a build for your GPU from pytorch.org"
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


def timed(bench: Bench, work: Work, *, looped: bool) -> dict[str, Any]:
    """Time a call: warm, with risen clocks, and with a cold cache.

    Returns:
        The measured columns of a row: medians, repeats, clock and what the GPU reported.
    """
    first_s = median(alone_s(bench, work, 3)[1:])
    repeats = int(min(max(SHAPE_S / first_s / 3.0, MIN_REPEATS), REPEATS))
    if looped:
        loop = int(min(max(LOOP_S / first_s, 1.0), MAX_LOOPED))
        warm = looped_s(bench, work, loop, repeats)
    else:
        warm = alone_s(bench, work, repeats)
    ramped, meters = ramped_s(bench, work, first_s), bench.meters()
    return {
        "latency_us": 1e6 * median(warm),
        "ramped_us": 1e6 * median(ramped),
        "cold_us": 1e6 * median(cold_s(bench, work, MIN_REPEATS)),
        "repeats": repeats,
        "timing": bench.timing(looped=looped),
        **meters,
    }


def alone_s(bench: Bench, work: Work, repeats: int) -> list[float]:
    """Return the seconds of calls that each start on an idle device."""
    seconds = []
    for _ in range(repeats):
        bench.synchronise()
        seconds += _between_s(bench, [work])
    return seconds


def ramped_s(bench: Bench, work: Work, first_s: float) -> list[float]:
    """Return the seconds of the last of many calls in a row, when clocks have settled."""
    count = int(min(max(RAMP_S / first_s, 4.0), MAX_RAMPED))
    return _between_s(bench, [work] * count)[-max(count // 4, 1) :]


def cold_s(bench: Bench, work: Work, repeats: int) -> list[float]:
    """Return the seconds of calls whose operands are outside the caches."""
    return [_between_s(bench, [work], before=bench.evict)[0] for _ in range(repeats)]


def looped_s(bench: Bench, work: Work, loop: int, repeats: int) -> list[float]:
    """Return the seconds of one call within a loop."""
    together = bench.repeated(work, loop)
    together()
    return [seconds / loop for seconds in _between_s(bench, [together] * repeats)]


def _between_s(bench: Bench, works: Sequence[Work], before: Work = lambda: None) -> list[float]:
    """Return the seconds of each of several calls in a row; `before` is called first, untimed."""
    events = [bench.event() for _ in range(len(works) + 1)]
    before()
    events[0].record()
    for work, event in zip(works, events[1:], strict=True):
        work()
        event.record()
    bench.synchronise()
    return [1e-3 * float(start.elapsed_time(end)) for start, end in itertools.pairwise(events)]
