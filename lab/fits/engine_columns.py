"""Step times of an engine as a linear function of the constants of its runtime.

A runtime's constants are a pace for each family of kernels, gaps of a layer and host times; each
multiplies a column. `engines.toml` says which kernels a runtime takes and whose constants it has.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.methods.positive_least_squares import Constant
from simulators.composition.operator_prices import Row, family_of, tokens_of
from simulators.composition.price import part_rows
from simulators.composition.replica import Replica, Runtime, load_runtime, share_of_many
from simulators.composition.throttling import slowdown, throttled_s
from simulators.core.jit import Floats
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import Step
from simulators.workload.operators import Collective, Column

ENGINES: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("engines.toml").read_text(encoding="utf-8")
)
ENGINE = {name: facts["like"] for name, facts in ENGINES.items() if "like" in facts}
"""Runtimes with the constants of another."""

FAMILIES = ("gemm", "experts", "prefill", "decode", "vector")
TRANSFERRED = {family: f"transferred_{family}" for family in FAMILIES}
"""Columns of kernels that were not measured on the GPU they run on."""

MANY = {family: f"many_{family}" for family in ("gemm", "experts")}
"""Columns of products, for the part that they are of many tokens."""

PACES, HOST_TIMES = ("paces", "transferred", "many"), ("host_s", "sequence_s")
GAPS = ("layer_s", *HOST_TIMES)
KINDS = ("mixture_layer_s", "latent_layer_s", "index_layer_s", "state_layer_s")
COLUMNS = ("fixed", *FAMILIES, *TRANSFERRED.values(), *MANY.values(), "messages", *GAPS, *KINDS)
"""Terms of a step's time; all but `fixed` have constants."""

KERNELS_PACE, MANY_PACE, MESSAGES_PACE = (1.0, 0.05), (1.0, 0.1), (1.0, 0.3)
PRIORS = {
    "layer_s": (5e-6, 1e-5),
    "host_s": (3e-4, 5e-4),
    "sequence_s": (5e-6, 1e-5),
    **dict.fromkeys(KINDS, (5e-06, 1e-05)),
}
"""Means and deviations: a launch takes some microseconds, a pass of a scheduler some hundreds."""


def kernels_of(name: str) -> dict[str, Any]:
    """Return whose kernels compete in a runtime, by family."""
    found: dict[str, Any] = ENGINES[name].get("kernels") or ENGINES[ENGINE[name]]["kernels"]
    return found


def framework_of(name: str) -> str:
    """Return the framework of a runtime."""
    return name.partition("_")[0]


def alike(name: str) -> list[str]:
    """Return the runtimes with the constants of another."""
    return [other for other, engine in ENGINE.items() if engine == name]


def bare(name: str) -> Runtime:
    """Return a runtime that adds nothing to its kernels."""
    return Runtime(
        name=name,
        framework=framework_of(name),
        layer_s=0.0,
        host_s=0.0,
        sequence_s=0.0,
        kernels=kernels_of(name),
        norms_in_sums=ENGINES[name].get("norms_in_sums", False),
        batch_times=batch_times_of(name),
    )


def batch_times_of(name: str) -> dict[str, float]:
    """Return the times of a release's experts of a batch over current ones, by kernels."""
    if slower := ENGINES[name].get("slower"):
        kernels = slower["kernels"]
        return {kernels: load_runtime(slower["as"]).batch_times[kernels]}
    return {}


def step_columns(replica: Replica, step: Step) -> Floats:
    """Return the columns of a step; one row per load."""
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
    """Yield the columns of an operator, and its seconds in each."""
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
    busy_s = np.where(present, seconds - throttled, 0.0)
    if family in MANY:
        many_s = share_of_many(tokens_of(operator)) * busy_s
        yield MANY[family], many_s
        busy_s = busy_s - many_s
    yield family if row.is_own else TRANSFERRED[family], busy_s


def numbers_of(runtime: Runtime, replica: Replica) -> Floats:
    """Return the factor of each column under a runtime."""
    chip, fabric = replica.gpu.architecture, replica.cluster.fabric_of(replica.gpu)
    paces = {"fixed": 1.0, "messages": runtime.pace(fabric, "messages")}
    for family, column in TRANSFERRED.items():
        paces[family] = runtime.pace(chip, family)
        paces[column] = runtime.pace(chip, family, is_own=False)
    for family, many in MANY.items():
        paces[many] = runtime.many.get(chip, {}).get(family, paces[family])
    return np.array([paces[name] if name in paces else getattr(runtime, name) for name in COLUMNS])


def constants_of(
    columns: Floats, replicas: Sequence[Replica], runtimes: Sequence[str]
) -> Iterator[Constant]:
    """Yield the constants: paces by architecture or fabric, gaps by framework and kind of layer.

    Gaps of a kind of layer are all engines', except for releases that have one of their own. An
    architecture without rows of its own kernels has paces of transferred ones.

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
            own, transferred = (
                column[one] * (architecture == name) for one in (family, TRANSFERRED[family])
            )
            many = column[MANY[family]] * (architecture == name) if family in MANY else 0.0 * own
            if own.any() or not transferred.any():
                yield Constant(f"paces.{name}.{family}", own + transferred, *KERNELS_PACE)
            else:
                yield Constant(f"transferred.{name}.{family}", transferred + many, *KERNELS_PACE)
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
        apart = _releases_with_own(kind)
        yield Constant(kind, column[kind] * ~np.isin(release, apart), *PRIORS[kind])
        for name in apart:
            yield Constant(f"{name}.{kind}", column[kind] * (release == name), *PRIORS[kind])


def _releases_with_own(kind: str) -> list[str]:
    return [name for name, facts in ENGINES.items() if kind in facts.get("own", ())]


def runtime_table(name: str, value: Mapping[str, float]) -> dict[str, Any]:
    """Return the constants of a runtime as its calibration stores them."""
    own = {gap: value[f"{ENGINE.get(name, name)}.{gap}"] for gap in GAPS}
    own |= {kind: value.get(f"{name}.{kind}", value[kind]) for kind in KINDS}
    table: dict[str, Any] = {"runtime": {**facts_of(name), **own, **_host_of(name, value)}}
    for constant, number in value.items():
        kind, *place = constant.split(".")
        if kind in PACES:
            of_kind = table.setdefault(kind, {})
            of_kind.setdefault(place[0], {})[place[1]] = number
    return table


def left_out_table(name: str, value: Mapping[str, float]) -> dict[str, Any]:
    """Return the constants of a runtime fitted without a group, and of releases apart from it."""
    table = runtime_table(name, value)
    for other in alike(name):
        own = {kind: value[f"{other}.{kind}"] for kind in ENGINES[other].get("own", ())}
        if found := own | _host_of(other, value):
            table[other] = found
    return table


def _host_of(name: str, value: Mapping[str, float]) -> dict[str, float]:
    """Return the host times that a runtime has from another, if it does."""
    whose = ENGINES[name].get("host")
    return {time: value[f"{whose}.{time}"] for time in HOST_TIMES} if whose else {}


def facts_of(name: str) -> dict[str, Any]:
    """Return the fields of a runtime that no fit determines."""
    facts = ("norms_in_sums", "decoder_numbers")
    known = {fact: ENGINES[name][fact] for fact in facts if fact in ENGINES[name]}
    return {"framework": framework_of(name), **known}


def kernels_table(name: str) -> dict[str, Any]:
    """Return whose kernels compete in a runtime, and which take longer than current ones."""
    slower = batch_times_of(name)
    return {"kernels": kernels_of(name), **({"batch_times": slower} if slower else {})}
