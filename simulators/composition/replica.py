"""A replica: one copy of a model, its GPUs and their runtime.

A runtime has the time that an engine adds to its kernels. With CUDA graphs that is a gap per layer
and host work per iteration and per sequence (scheduling, input preparation, sampling). Without
graphs layers also wait where launching takes longer than the kernels. A runtime names the libraries
that compete for each kernel, of which the fastest runs, and the pace of kernels inside a model over
their time alone. All numbers are fitted to whole deployments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from simulators.catalog.cluster import Cluster
from simulators.catalog.engine import KernelChoices, engine_order, kernel_choices
from simulators.catalog.gpu import INSTRUCTION_ROWS, Gpu
from simulators.catalog.model import LanguageModel
from simulators.catalog.sheet import fill
from simulators.core.calibration import read_calibration, read_choice
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import RUNTIMES, once
from simulators.dataflow.price import standing_w
from simulators.evidence.lookup import BEST, DEFAULT_FRAMEWORK
from simulators.kernels.energy import active_idle_w, idle_w_of
from simulators.workload.llm.memory import (
    fixed_sequence_bytes,
    kv_bytes_per_token,
    sequence_bytes,
)
from simulators.workload.llm.parallelism import Parallelism, Stage, state_layers
from simulators.workload.operators import Column

DEFAULT_RUNTIME = "graphs"
FRAMEWORKS = engine_order()
"""Engines with kernels and an all-reduce of their own, the default first."""

CALIBRATIONS = Path(__file__).parent / "calibration"
HOST, ROCM = CALIBRATIONS / "host.toml", CALIBRATIONS / "rocm.toml"

ANY, OTHER = "any", "other"
NOTHING = "nothing"
"""Value of an axis without a choice: no effect left out, no accelerator."""


@dataclass(frozen=True)
class Effects:
    """Effects between kernels and messages; each can be switched off."""

    launch: bool = True  # kernel launches, and gaps between the kernels of a layer
    fusion: bool = True  # operators between two products run as one kernel
    synchronisation: bool = True  # the host waits for an iteration's tokens before the next one
    clocks: bool = True  # GPUs at their power limit slow down while matrix units are busy
    prompt: bool = True  # the host tokenizes prompts


EVERYTHING = Effects()
EFFECTS = tuple(f.name for f in fields(Effects))

TABLES = "kernels", "paces", "transferred", "many", "batch_times"
"""Optional tables of a runtime's file."""

NARROW, WIDENED, BLOCKS, LATENT = "narrow_", "widened_", "block_", "latent_"
"""Prefixes of a family for products with weights narrower than activations (4-bit weights, and
8-bit weights that are multiplied in 16 bits), for 8-bit products with scales of blocks, and for
latent attention."""

FEW_TOKENS, MANY_TOKENS = 256.0, 2048.0
"""Limits of the paces of few and of many tokens."""

LONE_ROWS = 1.0
"""Mean tokens per expert up to which weights set the time of experts; from the rows of a matrix
instruction on, the work of tiles counts in full. Half or twice these limits change the documented
results by less than two points."""


def plain_family(family: str) -> str:
    """Return the family without the prefix of its weights.

    >>> plain_family("widened_experts")
    'experts'
    """
    for prefix in (NARROW, WIDENED, BLOCKS, LATENT):
        family = family.removeprefix(prefix)
    return family


def share_of_many(tokens: Column) -> Column:
    """Return the position of a number of tokens between few and many, by its logarithm: 0 to 1.

    >>> share_of_many(np.array([64.0, 724.0774, 8192.0])).round(3).tolist()
    [0.0, 0.5, 1.0]
    """
    return _share_between(FEW_TOKENS, MANY_TOKENS, tokens)


def _share_between(least: float, most: float, tokens: Column) -> Column:
    """Return the position of a number between two others, by its logarithm: 0 to 1.

    >>> _share_between(LONE_ROWS, INSTRUCTION_ROWS, np.array([0.5, 4.0, 16.0, 256.0])).tolist()
    [0.0, 0.5, 1.0, 1.0]
    """
    octaves = np.log2(np.maximum(tokens, least) / least)
    share: Column = np.minimum(1.0, octaves / np.log2(most / least))
    return share


def effects_without(names: str) -> Effects:
    """Return all effects except the named ones; names are joined by `+`.

    Raises:
        UnknownNameError: an effect is unknown.

    >>> effects_without("launch+clocks")
    Effects(launch=False, fusion=True, synchronisation=True, clocks=False, prompt=True)
    """
    left_out = {} if names == NOTHING else dict.fromkeys(names.split("+"), False)
    for name in left_out:
        if name not in EFFECTS:
            raise UnknownNameError("effect", name, (*EFFECTS, NOTHING))
    return replace(EVERYTHING, **left_out)


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Time that an engine adds to its kernels, and the choice and paces of kernels."""

    name: str
    layer_s: float  # gaps between the kernels of one layer
    host_s: float  # of one iteration
    sequence_s: float  # of one sequence in an iteration
    prepare_s: float = 0.0  # of one iteration, overlapped with the GPU; default: HOST's
    launch_layer_s: Mapping[str, float] = field(default_factory=dict)  # host time, by cluster
    framework: str = ""  # of kernels and messages; empty: the default of `kernels`
    # Competing libraries, by family or `family.architecture`.
    kernels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    index_layer_s: float = 0.0  # additional gap of a layer with an indexer
    state_layer_s: float = 0.0  # of a layer with a recurrent state
    gpus: Sequence[str] = ()  # of the fit
    across: str = ""  # the runtime with tensor parallelism; empty: the same
    host: str = ""  # of the measurement, if not that of a deployed engine
    is_fused: bool = True  # operators between products run as one kernel
    norms_in_sums: bool = False  # tensor-parallel sums include residual and norm
    decoder_numbers: int = 0  # fp32 numbers reserved per logit of the largest batch
    prompt_layer_s: Mapping[str, float] = field(default_factory=dict)  # launches with prompts
    prompt_token_s: Mapping[str, float] = field(default_factory=dict)  # tokenization, per token
    prompt_ktoken_s: Mapping[str, float] = field(default_factory=dict)  # growth per 1,000 tokens
    message_s: Mapping[str, float] = field(default_factory=dict)  # added start, by architecture
    # Factor on the prediction intervals of kernels within a whole pass, by architecture.
    interval_share: Mapping[str, float] = field(default_factory=dict)
    paces: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # device, family
    transferred: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # device, family
    many: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # paces of many tokens
    like: str = ""  # the runtime that an older release copies, except kernels and `batch_times`
    # Paces of experts with many rows over those of `like`, by family or `family.architecture`.
    batch_times: Mapping[str, float] = field(default_factory=dict)

    def competing(self, family: str, architecture: str) -> Sequence[str]:
        """Return the competing libraries of a family on an architecture; empty: the runtime's."""
        plain = plain_family(family)
        names = (f"{family}.{architecture}", f"{plain}.{architecture}", family, plain)
        return next((self.kernels[name] for name in names if name in self.kernels), ())

    def pace(self, device: str, family: str, *, is_own: bool = True) -> float:
        """Return the time of a family's kernels inside a model over their time alone.

        A device is an architecture for kernels, or a fabric for messages; a family is a family of
        kernels, or `messages`. A pace fitted on GPUs without measured kernels includes the error of
        the transfer; such paces are in `transferred` and apply only to transferred kernels.
        """
        own = self.paces.get(device, {}).get(family, 1.0)
        return own if is_own else self.transferred.get(device, {}).get(family, own)

    def pace_of(
        self,
        device: str,
        family: str,
        tokens: Column,
        *,
        rows: Column = np.inf,
        is_own: bool = True,
        is_foreign: bool = False,
    ) -> Column:
        """Return the pace of kernels for a number of tokens.

        Weights set the time of few tokens, FLOPs that of many tokens, so each has a pace. Paces do
        not apply to foreign kernels. `rows`: mean tokens per expert.
        """
        plain = plain_family(family)
        today: Column = 1.0
        if not is_foreign:
            known = self.transferred.get(device, {})
            few = self.pace(device, family if family in known else plain, is_own=is_own)
            many = self.many.get(device, {}).get(plain, few)
            today = few + (many - few) * share_of_many(tokens)
        family = family.removeprefix(BLOCKS).removeprefix(LATENT)
        times = self.batch_times.get(f"{family}.{device}", self.batch_times.get(family, 1.0))
        return today * (1.0 + (times - 1.0) * _share_between(LONE_ROWS, INSTRUCTION_ROWS, rows))

    @property
    def is_launching(self) -> bool:
        """Whether the host launches kernels one by one, without CUDA graphs."""
        return bool(self.launch_layer_s)

    def knows(self, gpu: Gpu) -> bool:
        """Return whether the runtime was fitted on a GPU or on the original of a what-if GPU."""
        return (gpu.measured_as or gpu.name) in self.gpus

    def extra_gaps_s(self, model: LanguageModel, part: Stage) -> float:
        """Return the additional gaps of a stage's layers with indexers or states."""
        states = state_layers(model, part)
        return (
            self.index_layer_s * (model.index_top_k > 0) * part.layers + self.state_layer_s * states
        )

    def launch_s(
        self,
        layers: int,
        sequences: Column,
        busy_s: Column,
        cluster: Cluster,
        *,
        prefills: Column = 0.0,
        effects: Effects = EVERYTHING,
        extra_gaps_s: float = 0.0,
    ) -> Column:
        """Return the seconds that launches and the host add to one iteration of a stage.

        An iteration takes the longer of the host's launches and the GPU's work, and at least the
        host's time to prepare it.
        """
        waits_s = (self.host_s + self.sequence_s * sequences) * effects.synchronisation
        if not effects.launch:
            return waits_s + 0.0 * busy_s
        waits_s = waits_s + layers * self.layer_s + extra_gaps_s
        prepare_s = max(0.0, self.prepare_s - self.host_s)
        launching: Column = max(prepare_s, layers * _on(cluster, self.launch_layer_s))
        if of_prompts := layers * _on(cluster, self.prompt_layer_s):
            launching = np.where(np.asarray(prefills) > 0.0, max(prepare_s, of_prompts), launching)
        elif not launching:
            return waits_s + 0.0 * busy_s
        return waits_s + np.maximum(0.0, launching - busy_s)

    def prompt_s(self, tokens: Column, prompts: Column, cluster: Cluster) -> Column:
        """Return the host's seconds to tokenize prompts of equal length.

        The time per token grows with the prompt: until 2024 the fast tokenizer of the Llama models
        replaced spaces in quadratic time (huggingface/tokenizers, issue 1449).
        """
        host = cluster.name if cluster.name in self.prompt_token_s else ANY
        thousands = tokens / np.maximum(prompts, 1.0) / 1000.0
        more_s = self.prompt_ktoken_s.get(host, 0.0) * thousands
        return tokens * (self.prompt_token_s.get(host, 0.0) + more_s)


def _on(cluster: Cluster, seconds: Mapping[str, float]) -> float:
    """Return a host's seconds on a cluster, or on any cluster; 0 without an entry."""
    return seconds.get(cluster.name, seconds.get(ANY, 0.0))


def load_runtime(name: str = DEFAULT_RUNTIME) -> Runtime:
    """Return the runtime with a name or a TOML path.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, or has an unknown one.

    >>> load_runtime("graphs").launch_layer_s
    {}
    """
    path = RUNTIMES.find(name)
    return _runtime(path, name, path.stat().st_mtime_ns)


def runtime_across(
    runtime: Runtime, width: int, load: Callable[[str], Runtime] = load_runtime
) -> Runtime:
    """Return the runtime of a pipeline stage of `width` GPUs.

    A single process launches differently from synchronized processes, one per GPU, so the
    measurements of one do not apply to the other.

    >>> [runtime_across(load_runtime("eager"), width).name for width in (1, 2)]
    ['eager', 'eager_tp']
    """
    return load(runtime.across) if runtime.across and width > 1 else runtime


@functools.lru_cache(maxsize=256)
def _runtime(path: Path, name: str, _mtime_ns: int) -> Runtime:
    content = read_choice(path)
    if "runtime" not in content:
        raise UserError(f"{path}: a runtime needs a table [runtime]")
    if like := content["runtime"].get("like"):
        if set(content["runtime"]) != {"like"}:
            raise UserError(
                f"{path}: a runtime with `like` may only add [batch_times] and [kernels]"
            )
        today, times = load_runtime(like), content.get("batch_times", {})
        kernels = {**today.kernels, **content.get("kernels", {})}
        older = replace(today, name=name, like=like, batch_times=times, kernels=kernels)
        return with_rocm_constants(older)
    tables = {table: content.get(table, {}) for table in TABLES}
    common = tables | {"name": name} | read_calibration(HOST)["host"]
    return with_rocm_constants(fill(Runtime, common | content["runtime"], path, "runtime"))


def with_rocm_constants(runtime: Runtime) -> Runtime:
    """Return the runtime with its constants of AMD's GPUs.

    Collectives start later than NCCL's model predicts, above all in older releases. AITER's decode
    kernel of latent attention and hipBLASLt's large products have fitted paces, because no table
    holds their times. Engines without measured deployments on AMD's GPUs have the start time of the
    newest release with some.
    """
    if not runtime.framework:
        return runtime
    fitted = once(read_calibration, ROCM)
    start_s = fitted["message_s"]
    known = (name for name in (runtime.name, runtime.like) if name in start_s)
    return replace(
        runtime,
        message_s=dict.fromkeys(fitted["transferred"], start_s[next(known, OTHER)]),
        interval_share=fitted["interval_share"],
        transferred={**runtime.transferred, **fitted["transferred"]},
        many={**runtime.many, **fitted["many"]},
    )


@dataclass(frozen=True)
class Replica:
    """One copy of a model on its GPUs."""

    model: LanguageModel
    gpu: Gpu
    cluster: Cluster
    layout: Parallelism = field(default_factory=Parallelism)
    dtype: str = "fp16"
    kv_dtype: str = "fp16"
    runtime: Runtime = field(default_factory=load_runtime)
    framework: str = ""  # of kernels and messages; empty: the runtime's, else the default
    overlap: float = 0.0  # share of tensor-parallel sums that products hide
    effects: Effects = EVERYTHING
    accelerator: str = ""  # that computes in place of the GPU; empty: none
    level: str = BEST  # of information about the GPU's kernels; `zero_shot`: as if unmeasured
    power_limit_w: float = 0.0  # of a GPU; 0: the data sheet's
    unified: bool = False  # chunks and decodes attend in one kernel, if the library has one
    overlapped: bool = False  # attention kernels of chunks and decodes overlap on every SM
    two_batch_overlap: bool = False  # kernels of half a batch hide the exchanges of the other half
    nucleus: bool = False  # nucleus sampling: tokens are drawn from sorted probabilities
    time_share: float = 1.0  # of the GPU under time slicing
    stream_interval: int = 1  # iterations between messages to a client; 0: answers are sent whole
    messages_as: Replica | None = None  # replica whose messages are priced; None: this one
    host_as: Replica | None = None  # replica whose launches and host are priced; None: this one

    @property
    def messenger(self) -> Replica:
        """Replica whose messages are priced: in a mixture of two designs, perhaps the other's."""
        return self.messages_as or self

    @property
    def launcher(self) -> Replica:
        """Replica whose launches and host are priced: in a mixture, perhaps the other's."""
        return self.host_as or self

    @property
    def library(self) -> str:
        """Framework of the kernels and messages."""
        return self.framework or self.runtime.framework or DEFAULT_FRAMEWORK

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token in the KV cache of the fullest GPU."""
        whole = self.keeps_whole_windows
        return kv_bytes_per_token(self.model, self.layout, self.kv_dtype, whole_windows=whole)

    def sequence_bytes(self, context: Column) -> Column:
        """Return the bytes of a sequence of `context` tokens on the fullest GPU."""
        whole = self.keeps_whole_windows
        return sequence_bytes(self.model, self.layout, self.kv_dtype, context, whole_windows=whole)

    @property
    def fixed_sequence_bytes(self) -> float:
        """Bytes of a sequence on the fullest GPU that do not grow with its tokens."""
        whole = self.keeps_whole_windows
        return fixed_sequence_bytes(self.model, self.layout, self.kv_dtype, whole_windows=whole)

    @property
    def keeps_whole_windows(self) -> bool:
        """Whether layers with a window cache all tokens; never without an engine."""
        has_engine = bool(self.framework or self.runtime.framework)
        return has_engine and self.kernel_choices.keeps_whole_windows

    @property
    def kernel_choices(self) -> KernelChoices:
        """Kernel choices of the engine behind `library`."""
        return kernel_choices(self.library)

    def hosted(self, sequences: Column) -> Column:
        """Return the number of an iteration's sequences that the busiest host handles.

        Each rank of data-parallel attention has its own host. In TensorRT-LLM the first rank sends
        the streamed tokens of all ranks within its loop; in vLLM and SGLang another process does. A
        message is assumed to cost as much as an iteration of a sequence, since messages alone are
        not measured.
        """
        own = sequences / self.layout.attention_dp
        sends = self.stream_interval and self.kernel_choices.first_rank_streams
        return own + (sequences - own) / self.stream_interval if sends else own

    @property
    def active_idle_w(self) -> float:
        """Watts of a device during messages and launches, within its power limit."""
        if self.accelerator:
            return standing_w(self.accelerator)
        return min(active_idle_w(self.gpu), self.power_limit_w or np.inf)

    @property
    def resting_w(self) -> float:
        """Watts of a device without work."""
        return standing_w(self.accelerator) if self.accelerator else idle_w_of(self.gpu)

    @property
    def is_fused(self) -> bool:
        """Whether the operators between two products run as one kernel."""
        return self.effects.fusion and self.runtime.is_fused
