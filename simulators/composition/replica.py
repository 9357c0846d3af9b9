"""A replica: one copy of a model, its GPUs and their runtime.

A runtime holds the time that an engine adds to its kernels. With CUDA graphs that is a gap per
layer and host work per iteration and per sequence (scheduling, input preparation, sampling).
Without them layers also wait wherever launching takes longer than the kernels do. A runtime names
the libraries that compete for each kernel, of which the fastest runs, and the pace of kernels
inside a model over their time alone. All numbers are fitted to whole deployments.
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
from simulators.core.folder import RUNTIMES
from simulators.dataflow.price import standing_w
from simulators.evidence.lookup import BEST, DEFAULT_FRAMEWORK
from simulators.kernels.energy import active_idle_w, idle_w_of
from simulators.workload.llm.memory import kv_bytes_per_token
from simulators.workload.llm.parallelism import Parallelism, Stage, attending_layers
from simulators.workload.operators import Column

DEFAULT_RUNTIME = "graphs"
FRAMEWORKS = engine_order()
"""Engines with kernels and an all-reduce of their own, the default first."""

HOST = Path(__file__).parent / "calibration" / "host.toml"

ANY = "any"
NOTHING = "nothing"
"""Value of an axis without a choice: no effect left out, no accelerator."""


@dataclass(frozen=True)
class Effects:
    """What is counted besides kernels and messages that follow each other at once.

    Each can be left out, which says how much it contributes.
    """

    launch: bool = True  # hosts take time to launch kernels, with gaps between those of a layer
    fusion: bool = True  # what stands between two products runs as one kernel
    synchronisation: bool = True  # a host waits for an iteration's tokens before it prepares more
    clocks: bool = True  # GPUs at their power limit slow down while matrix units are busy
    prompt: bool = True  # a host turns the text of a prompt into tokens


EVERYTHING = Effects()
EFFECTS = tuple(f.name for f in fields(Effects))

TABLES = "kernels", "paces", "transferred", "many", "batch_times"
"""Of the file of a runtime, each left out where it is empty."""

NARROW, WIDENED = "narrow_", "widened_"
"""Before the name of a family: its products with weights narrower than their activations, of four
bits or of eight that are multiplied in 16, where their kernels or paces are others."""

FEW_TOKENS, MANY_TOKENS = 256.0, 2048.0
"""Up to here kernels have the pace of few tokens, from here on that of many."""

LONE_ROWS = 1.0
"""Up to here, in the mean, experts wait for their weights, however they are written; from as many
rows as a matrix instruction has the work of their tiles counts whole. Half and twice of either end
change what results printed in documentation come out at by less than two points."""


def plain_family(family: str) -> str:
    """Return the family that one of narrow or widened products is of.

    >>> plain_family("widened_experts")
    'experts'
    """
    return family.removeprefix(NARROW).removeprefix(WIDENED)


def share_of_many(tokens: Column) -> Column:
    """Return how far a number of tokens is from few to many, by its logarithm.

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
    """Return all effects but those named, joined by `+`.

    Raises:
        UnknownNameError: there is no such effect.

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
    """What a way of running a model costs besides its kernels."""

    name: str
    layer_s: float  # gaps between the kernels of one layer
    host_s: float  # of one iteration
    sequence_s: float  # of one sequence in an iteration
    prepare_s: float = 0.0  # of one iteration, behind the GPU's work; files that are silent: HOST's
    launch_layer_s: Mapping[str, float] = field(default_factory=dict)  # host time, by cluster
    framework: str = ""  # whose kernels and messages; empty: the default of `kernels`
    kernels: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by family: whose compete,
    # and by `family.architecture` where it is others'
    mixture_layer_s: float = 0.0  # gaps that a layer of experts has besides
    latent_layer_s: float = 0.0  # and one of latent attention
    index_layer_s: float = 0.0  # and one whose keys an indexer chooses
    state_layer_s: float = 0.0  # and one that keeps a state
    gpus: Sequence[str] = ()  # the GPUs it was fitted on
    across: str = ""  # the runtime with tensor parallelism; empty: itself
    host: str = ""  # whose host was measured, where it is not that of an engine as deployed
    is_fused: bool = True  # what stands between products runs as one kernel
    norms_in_sums: bool = False  # a kernel that sums over tensor ranks adds residual and norm, too
    decoder_numbers: int = 0  # of 32 bits, set aside for each logit of the most rows of a batch
    prompt_layer_s: Mapping[str, float] = field(default_factory=dict)  # launches with prompts
    prompt_token_s: Mapping[str, float] = field(default_factory=dict)  # tokenising, per token
    prompt_ktoken_s: Mapping[str, float] = field(default_factory=dict)  # more of it, per 1,000
    paces: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # device, family
    transferred: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # device, family
    many: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # paces of many tokens
    like: str = ""  # the runtime whose numbers it has, of an older release, but for kernels and
    batch_times: Mapping[str, float] = field(
        default_factory=dict
    )  # these: paces of experts with many rows over today's, by family or `family.architecture`

    def competing(self, family: str, architecture: str) -> Sequence[str]:
        """Return whose kernels of a family compete on an architecture; empty: its own."""
        plain = plain_family(family)
        names = (f"{family}.{architecture}", f"{plain}.{architecture}", family, plain)
        return next((self.kernels[name] for name in names if name in self.kernels), ())

    def pace(self, device: str, family: str, *, is_own: bool = True) -> float:
        """Return the time of a family's kernels inside a model over their time alone.

        Kernels differ by the architecture of a GPU, messages by the fabric between GPUs. A
        pace fitted on GPUs without measured kernels includes the error of the transfer; such paces
        are in `transferred` only and do not apply to kernels measured on the GPU itself.
        A device is an architecture or a fabric; a family is one of kernels, or `messages`.
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
        """Return the pace of kernels that work on so many tokens.

        Weights set the time of few tokens, and products that of many: what a model changes about
        one says little of the other, so each has a pace. Paces say nothing of foreign kernels.
        `rows` are those of an expert, in the mean.
        """
        plain = plain_family(family)
        today: Column = 1.0
        if not is_foreign:
            few = self.pace(device, plain, is_own=is_own)
            many = self.many.get(device, {}).get(plain, few)
            today = few + (many - few) * share_of_many(tokens)
        times = self.batch_times.get(f"{family}.{device}", self.batch_times.get(family, 1.0))
        return today * (1.0 + (times - 1.0) * _share_between(LONE_ROWS, INSTRUCTION_ROWS, rows))

    @property
    def is_launching(self) -> bool:
        """Whether the host launches kernel by kernel, and replays no graphs."""
        return bool(self.launch_layer_s)

    def knows(self, gpu: Gpu) -> bool:
        """Return whether the runtime was fitted on a GPU or on the original of a what-if GPU."""
        return (gpu.measured_as or gpu.name) in self.gpus

    def extra_gaps_s(self, model: LanguageModel, part: Stage) -> float:
        """Return the gaps of a stage's layers of unusual kinds."""
        states = part.layers - attending_layers(model, part) if model.has_states else 0
        return (
            self.mixture_layer_s * part.expert_layers
            + self.latent_layer_s * model.is_latent * part.layers
            + self.index_layer_s * (model.index_top_k > 0) * part.layers
            + self.state_layer_s * states
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
        """Return the seconds that are added to the GPU's own time in one iteration of a stage.

        All layers launch alike, so either the host or the GPU sets the pace of all of them: an
        iteration takes the longer of both. Nor does one end before the host prepared it.
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
        """Return the host's time to turn prompts of equal length into tokens.

        Time per token grows with the prompt: until 2024 the fast tokenizer of the Llama models
        replaced spaces in quadratic time (huggingface/tokenizers, issue 1449).
        """
        host = cluster.name if cluster.name in self.prompt_token_s else ANY
        thousands = tokens / np.maximum(prompts, 1.0) / 1000.0
        more_s = self.prompt_ktoken_s.get(host, 0.0) * thousands
        return tokens * (self.prompt_token_s.get(host, 0.0) + more_s)


def _on(cluster: Cluster, seconds: Mapping[str, float]) -> float:
    """Return a host's time on a cluster, or on any; 0 where nothing is launched."""
    return seconds.get(cluster.name, seconds.get(ANY, 0.0))


def load_runtime(name: str = DEFAULT_RUNTIME) -> Runtime:
    """Return the runtime of that name or TOML path: fitted, or a choice by hand.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file lacks a field, or has one that means nothing.

    >>> load_runtime("graphs").launch_layer_s
    {}
    """
    path = RUNTIMES.find(name)
    return _runtime(path, name, path.stat().st_mtime_ns)


def runtime_across(
    runtime: Runtime, width: int, load: Callable[[str], Runtime] = load_runtime
) -> Runtime:
    """Return what a runtime is on a pipeline stage of so many GPUs.

    One process launches otherwise than several, one a GPU, that run in step: what was measured of
    the one does not hold of the other.

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
                f"{path}: a runtime that is like another has [batch_times] and [kernels] besides"
            )
        today, times = load_runtime(like), content.get("batch_times", {})
        kernels = {**today.kernels, **content.get("kernels", {})}
        return replace(today, name=name, like=like, batch_times=times, kernels=kernels)
    tables = {table: content.get(table, {}) for table in TABLES}
    common = tables | {"name": name} | read_calibration(HOST)["host"]
    return fill(Runtime, common | content["runtime"], path, "runtime")


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
    framework: str = ""  # whose kernels and messages; empty: the runtime's, else the default
    overlap: float = 0.0  # share of the sums over tensor ranks that runs behind products
    effects: Effects = EVERYTHING
    accelerator: str = ""  # what computes in the place of the GPU's kernels, if anything
    level: str = BEST  # of information about the GPU's kernels; `zero_shot`: as if unmeasured
    power_limit_w: float = 0.0  # of a GPU, that its clock falls for; 0: the data sheet's
    unified: bool = False  # chunks and decodes attend in one kernel, where the library has one
    overlapped: bool = False  # their kernels run beside each other on every SM
    nucleus: bool = False  # tokens are drawn from sorted probabilities
    time_share: float = 1.0  # of the GPU's that kernels get, where other processes have the rest
    stream_interval: int = 1  # iterations between messages to a client; 0: answers are sent whole

    @property
    def library(self) -> str:
        """Whose kernels and messages run."""
        return self.framework or self.runtime.framework or DEFAULT_FRAMEWORK

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token in the KV cache of the fullest GPU."""
        whole = self.kernel_choices.keeps_whole_windows
        return kv_bytes_per_token(self.model, self.layout, self.kv_dtype, whole_windows=whole)

    @property
    def kernel_choices(self) -> KernelChoices:
        """Which kernels the engine behind `library` runs."""
        return kernel_choices(self.library)

    def hosted(self, sequences: Column) -> Column:
        """Return for how many of an iteration's sequences the busiest host works.

        Each rank of data-parallel attention has a host of its own, but one hands over what all of
        them stream: TensorRT-LLM's first rank, within its loop (`_enqueue_responses` in
        `py_executor.py`), or a server's process. A message costs as much as an iteration of a
        sequence: a choice, of messages alone nothing is measured.
        """
        own = sequences / self.layout.attention_dp
        return own + (sequences - own) / self.stream_interval if self.stream_interval else own

    @property
    def active_idle_w(self) -> float:
        """Watts of a device during messages and launches."""
        return standing_w(self.accelerator) if self.accelerator else active_idle_w(self.gpu)

    @property
    def resting_w(self) -> float:
        """Watts of a device without work."""
        return standing_w(self.accelerator) if self.accelerator else idle_w_of(self.gpu)

    @property
    def is_fused(self) -> bool:
        """Whether the operators between two products run as one kernel."""
        return self.effects.fusion and self.runtime.is_fused
