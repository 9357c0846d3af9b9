"""What a step of a bare engine takes, in columns that the constants of a runtime multiply.

A runtime's numbers are a pace for each family of kernels, gaps of a layer and host times; the time
of a step is linear in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lab.fits.driver import strings, table_lines
from lab.fits.methods.positive_least_squares import Constant
from simulators.composition.operator_prices import Row, family_of, tokens_of
from simulators.composition.price import part_rows
from simulators.composition.replica import Replica, Runtime, load_runtime, share_of_many
from simulators.composition.throttling import slowdown, throttled_s
from simulators.core.jit import Floats
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import Step
from simulators.workload.operators import Collective, Column

KERNELS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {"gemm": ("vllm", "trtllm"), "experts": ("trtllm", "vllm")},
    "trtllm": {"gemm": ("vllm", "trtllm"), "experts": ("trtllm", "vllm")},
    "trtllm_cutlass": {"gemm": ("vllm", "trtllm"), "experts": ("trtllm",)},
    "trtllm_session": {"gemm": ("trtllm",), "experts": ("trtllm",)},
    "sglang": {
        "gemm": ("vllm", "trtllm"),
        "experts": ("trtllm", "vllm", "flashinfer"),
        "experts.hopper": ("sglang",),
        "prefill": ("vllm",),
        "decode": ("vllm",),
    },
}
"""Today's engines choose among kernels that were written for several of them (cuBLAS, CUTLASS,
DeepGEMM, TensorRT-LLM's through FlashInfer), so products and experts are the fastest measured for
either framework whose tables are kept. SGLang's recipes ask for FlashInfer's experts, which vLLM's
switch off in 8 bits; on Hopper it runs its own in Triton unless told otherwise (`server_args.py`,
`moe_runner_backend`)."""

ALIKE = {
    "trtllm": ("trtllm_cutlass", "trtllm_1_1", "trtllm_executor"),
    "sglang": ("sglang_0_5_9",),
}
"""Runtimes with the constants of another, but for kernels or what sets a release apart:
TensorRT-LLM as it is started without options, which runs experts by CUTLASS; older releases; and
engines that were built ahead, which run the same kernels under an executor in C++."""

HOSTS = {"trtllm_executor": "trtllm_session"}
"""Runtimes whose host is another's: the executor's loop is that of TensorRT-LLM's session, which
static batches timed."""

ENGINE = {alike: name for name, names in ALIKE.items() for alike in names}
KERNELS |= {name: KERNELS[like] for name, like in ENGINE.items() if name not in KERNELS}

APART = {"state_layer_s": ("sglang_0_5_9",)}
"""Gaps that releases have of their own. Before 0.5.10 SGLang copied apart what the projections of a
gated-delta layer give, kernel by kernel; since then one does it all (pull request 21019)."""

SLOWER_EXPERTS = dict.fromkeys(
    ("trtllm_1_1", "trtllm_executor"), ("experts.blackwell", "vllm_0_13")
)
"""Releases whose experts of a batch took longer than today's on an architecture, and whose factor
there says by how much: that of printed results of 2025, which knows no deployment. On Blackwell
kernels were new then; on Hopper, and where weights are narrower than activations, TensorRT-LLM of
that year is as quick as today's."""

KERNELS_OF = {name: name.partition("_")[0] for name in KERNELS}
"""Whose kernels and messages a runtime takes where nothing else is said."""

NORMS_IN_SUMS = ("trtllm", *ALIKE["trtllm"])
"""Runtimes whose kernel of a sum over tensor ranks adds the residual and norms: TensorRT-LLM's of
today do so unless a model's code lacks it (`AllReduceFusionOp`, `*_EAGER_FUSION_DISABLED`)."""

DECODER_NUMBERS = {"trtllm_session": 6}
"""Numbers of 32 bits that a decoder holds for each logit of the most requests there may be, on each
GPU of the last stage. TensorRT-LLM's session (sources of about 0.14): the engine's output (read in
`runtimeBuffers.cpp`, published later), the logits it works on (`decodingLayerWorkspace.cpp`), the
counts of tokens seen (`penaltyLayer.cpp`), the copy that top-k draws from
(`samplingTopKKernels.h`), a bias of the request's and the logits of a draft, which it allocates
whether there are any or not (`setup` in `gptDecoderBatched.cpp`). What has not the size of the
vocabulary is left out."""

FAMILIES = ("gemm", "experts", "prefill", "decode", "vector")
BORROWED = {family: f"borrowed_{family}" for family in FAMILIES}
"""Kernels that were not measured on the GPU they run on have columns of their own."""

MANY = {family: f"many_{family}" for family in ("gemm", "experts")}
"""Products of many tokens have columns of their own, for as much as they are of many."""

PACES = ("paces", "borrowed", "many")
HOST_TIMES = ("host_s", "sequence_s")
GAPS = ("layer_s", *HOST_TIMES)
KINDS = ("mixture_layer_s", "latent_layer_s", "index_layer_s", "state_layer_s")
COLUMNS = (
    "fixed",
    *FAMILIES,
    *BORROWED.values(),
    *MANY.values(),
    "messages",
    *GAPS,
    *KINDS,
)
"""What the time of a token is a sum of; all but `fixed` have constants."""

KERNELS_PACE, MANY_PACE, MESSAGES_PACE = (1.0, 0.05), (1.0, 0.1), (1.0, 0.3)
PRIORS = {
    "layer_s": (5e-6, 1e-5),
    "host_s": (3e-4, 5e-4),
    "sequence_s": (5e-6, 1e-5),
    **dict.fromkeys(KINDS, (5e-06, 1e-05)),
}
"""Means and deviations: a launch takes some microseconds, a pass of a scheduler some hundreds."""


def bare(framework: str) -> Runtime:
    """Return a framework's runtime that adds nothing to its kernels."""
    return Runtime(
        name=framework,
        framework=KERNELS_OF[framework],
        layer_s=0.0,
        host_s=0.0,
        sequence_s=0.0,
        kernels=KERNELS[framework],
        norms_in_sums=framework in NORMS_IN_SUMS,
        batch_times=batch_times_of(framework),
    )


def batch_times_of(framework: str) -> dict[str, float]:
    """Return what experts of a batch take in a release over what they take today, by kernels."""
    if framework not in SLOWER_EXPERTS:
        return {}
    kernels, told = SLOWER_EXPERTS[framework]
    return {kernels: load_runtime(told).batch_times[kernels]}


def step_columns(replica: Replica, step: Step) -> Floats:
    """Return what a step takes, by column; one row per load."""
    part = stage_of(replica.model, replica.cut, 0)
    size = np.asarray(step.decodes, np.float64).size
    table = {name: np.zeros(size) for name in COLUMNS}
    share = slowdown(replica.gpu)
    for row in part_rows(replica, step, part):
        for name, seconds in _columns_of(row, replica, share):
            table[name] += seconds
    counts: dict[str, Column] = {
        "layer_s": part.layers,
        "host_s": 1.0,
        "sequence_s": replica.hosted(step.prefills + step.decodes),
        "mixture_layer_s": part.expert_layers,
        "latent_layer_s": part.layers * replica.model.is_latent,
        "index_layer_s": part.layers * (replica.model.index_top_k > 0),
        "state_layer_s": replica.model.state_layers,
    }
    for name, count in counts.items():
        table[name] += count
    return np.stack([table[name] for name in COLUMNS], axis=-1)


def _columns_of(row: Row, replica: Replica, share: float) -> Iterator[tuple[str, Floats]]:
    """Yield the columns an operator adds to, and its seconds in each."""
    seconds, operator = np.asarray(row.seconds, np.float64), row.operator
    if isinstance(operator, Collective):
        yield "messages", seconds
        return
    if row.is_foreign:
        yield "fixed", seconds
        return
    present = seconds > 0.0
    throttled = operator.repeat * np.asarray(throttled_s(operator, replica.gpu, share))
    yield "fixed", np.where(present, throttled, 0.0)
    family = family_of(operator)
    column = family if row.is_own else BORROWED[family]
    busy_s = np.where(present, seconds - throttled, 0.0)
    if family in MANY:
        many_s = share_of_many(tokens_of(operator)) * busy_s
        yield MANY[family], many_s
        busy_s = busy_s - many_s
    yield column, busy_s


def numbers_of(runtime: Runtime, replica: Replica) -> Floats:
    """Return what each column is multiplied by under a runtime."""
    chip, fabric = replica.gpu.architecture, replica.cluster.fabric_of(replica.gpu)
    paces = {"fixed": 1.0, "messages": runtime.pace(fabric, "messages")}
    for family, borrowed in BORROWED.items():
        paces[family] = runtime.pace(chip, family)
        paces[borrowed] = runtime.pace(chip, family, is_own=False)
    for family, many in MANY.items():
        paces[many] = runtime.many.get(chip, {}).get(family, paces[family])
    return np.array([paces[name] if name in paces else getattr(runtime, name) for name in COLUMNS])


def constants_of(
    columns: Floats, replicas: Sequence[Replica], runtimes: Sequence[str]
) -> Iterator[Constant]:
    """Yield the constants: paces by architecture or fabric, gaps by framework and kind of layer.

    Gaps of a kind of layer are all engines', but for releases that have one of their own.

    An architecture on which no row ran kernels of its own has paces of borrowed ones.

    Args:
        columns: of every row.
        replicas: of every row.
        runtimes: of every row.
    """
    column = {name: columns[:, i] for i, name in enumerate(COLUMNS)}
    architecture = np.array([replica.gpu.architecture for replica in replicas])
    fabric = np.array([replica.cluster.fabric_of(replica.gpu) for replica in replicas])
    framework, release = np.array([ENGINE.get(name, name) for name in runtimes]), np.array(runtimes)
    for name in sorted(set(architecture)):
        for family in FAMILIES:
            own, lent = (column[one] * (architecture == name) for one in (family, BORROWED[family]))
            many = column[MANY[family]] * (architecture == name) if family in MANY else 0.0 * own
            if own.any() or not lent.any():
                yield Constant(f"paces.{name}.{family}", own + lent, *KERNELS_PACE)
            else:
                yield Constant(f"borrowed.{name}.{family}", lent + many, *KERNELS_PACE)
                continue
            if family in MANY:
                yield Constant(f"many.{name}.{family}", many, *MANY_PACE)
    for name in sorted(set(fabric)):
        taken = column["messages"] * (fabric == name)
        yield Constant(f"paces.{name}.messages", taken, *MESSAGES_PACE)
    for name in sorted(set(framework.tolist())):
        for gap in GAPS:
            yield Constant(f"{name}.{gap}", column[gap] * (framework == name), *PRIORS[gap])
    for kind in KINDS:
        is_apart = np.isin(release, APART.get(kind, ()))
        yield Constant(kind, column[kind] * ~is_apart, *PRIORS[kind])
        for name in APART.get(kind, ()):
            yield Constant(f"{name}.{kind}", column[kind] * (release == name), *PRIORS[kind])


def runtime_lines(
    framework: str, constants: Sequence[Constant], values: Floats, left_out: str = ""
) -> list[str]:
    """Return the numbers of a runtime as TOML, all of them or those without a group.

    Without a group, gaps and hosts that others of its kind have of their own follow.
    """
    value = {c.name: v for c, v in zip(constants, values, strict=True)}
    prefix = f'without."{left_out}".' if left_out else ""
    own = {gap: value[f"{ENGINE.get(framework, framework)}.{gap}"] for gap in GAPS}
    own |= {kind: value.get(f"{framework}.{kind}", value[kind]) for kind in KINDS}
    own |= _host_of(framework, value)
    title, *numbers = table_lines(f"{prefix}runtime", own, ".4g")[1:]
    lines = ["", title, f'framework = "{KERNELS_OF[framework]}"', *facts_lines(framework), *numbers]
    paces: dict[str, dict[str, float]] = {}
    for name, number in value.items():
        table, _, family = name.rpartition(".")
        if table.startswith(PACES):
            paces.setdefault(table, {})[family] = number
    for table, of in paces.items():
        lines += table_lines(f"{prefix}{table}", of, ".4g")
    for kind, releases in APART.items() if left_out else ():
        for release in (one for one in releases if ENGINE[one] == framework):
            lines += table_lines(f"{prefix}{release}", {kind: value[f"{release}.{kind}"]}, ".4g")
    for alike in ALIKE.get(framework, ()) if left_out else ():
        if host := _host_of(alike, value):
            lines += table_lines(f"{prefix}{alike}", host, ".4g")
    return lines


def _host_of(framework: str, value: Mapping[str, float]) -> dict[str, float]:
    """Return the host times that a runtime has from another, if it does."""
    whose = HOSTS.get(framework)
    return {time: value[f"{whose}.{time}"] for time in HOST_TIMES} if whose else {}


def facts_lines(framework: str) -> list[str]:
    """Return what is known of a framework without a fit, as TOML."""
    sums = ["norms_in_sums = true"] if framework in NORMS_IN_SUMS else []
    held = DECODER_NUMBERS.get(framework, 0)
    return [*sums, *([f"decoder_numbers = {held}"] if held else [])]


def kernels_lines(framework: str) -> list[str]:
    """Return whose kernels compete in a framework, and which take longer than today, as TOML."""
    named = {f'"{n}"' if "." in n else n: whose for n, whose in KERNELS[framework].items()}
    lines = ["", "[kernels]", *(f"{family} = {strings(of)}" for family, of in named.items())]
    slower = {f'"{name}"': factor for name, factor in batch_times_of(framework).items()}
    return [*lines, *(table_lines("batch_times", slower, ".4g") if slower else [])]
