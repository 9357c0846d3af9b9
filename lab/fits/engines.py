"""Fit engines' constants to whole deployments: a few per framework.

A runtime's constants are paces of some families of kernels, gaps of a layer and host times; each
multiplies a column of a step's time. `engines.toml` says which paces are fitted, which kernels a
runtime takes and whose constants it has. docs/explanation/deployments.md describes the fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration, declared, settings
from lab.fits.methods import Constant, LeastSquares, fit_by_group, grouped, solve
from lab.tables.deployments import newer_groups, silicon, until
from lab.tables.passes import SESSION, StaticBatch, static_rows
from lab.tables.records import replica_of
from simulators.catalog.engine import load_engine
from simulators.composition.adjustments import slowdown, throttled_s
from simulators.composition.operator_prices import Row, family_of, tokens_of
from simulators.composition.price import part_rows
from simulators.composition.replica import ANY, Replica, Runtime, load_runtime, share_of_many
from simulators.core.folder import PACKAGES
from simulators.core.jit import Floats
from simulators.serving.measured.deployments import Deployed
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import stage_of
from simulators.workload.llm.step import Step, decode_step, prefill_step
from simulators.workload.operators import Collective, Column

CONFIG = settings(__file__)
ENGINES: dict[str, dict[str, Any]] = CONFIG.engines
SAME_CONSTANTS = {name: facts["like"] for name, facts in ENGINES.items() if "like" in facts}
"""Runtimes with the constants of another."""


def by_replica(rows: Sequence[Deployed]) -> Mapping[tuple[object, ...], list[int]]:
    """Return the positions of the rows of each replica."""
    names = ("model", "gpu", "layout", "dtype", "kv_dtype", "runtime")
    return grouped(range(len(rows)), lambda i: tuple(getattr(rows[i], name) for name in names))


def deployed_replica(row: Deployed, runtime: Runtime) -> Replica:
    """Return the replica of a deployment, under a runtime."""
    names = ("model", "gpu", "layout", "dtype", "kv_dtype")
    interval = load_engine(row.framework).defaults.stream_interval
    fields = {name: getattr(row, name) for name in names}
    return replica_of(**fields, runtime=runtime, stream_interval=interval)


def steady_state(replica: Replica, loads: Sequence[Deployed]) -> list[tuple[Step, Floats]]:
    """Return decode and prefill steps of loads of one replica, and weights in a token's time.

    The prefill step has the decodes that share the iteration, if they do.
    """
    longest, most, clients, budget = (
        np.array([getattr(d, name) for d in loads], np.float64)
        for name in ("prompt", "output", "clients", "budget")
    )
    mean = np.array([d.client.mean_length for d in loads])
    prompt, output = mean * longest, mean * most
    poll = np.array([max(1, d.launch.poll_interval) for d in loads], np.float64)
    context = prompt + output / 2.0
    framework = loads[0].framework
    slots = np.maximum(1.0, kv_tokens(replica, of_rest=framework in CONFIG.of_rest) / context)
    running = np.minimum(clients, slots)
    prompts = np.maximum(running - 1.0, 0.0) / output
    at_once = np.maximum(1.0, prompts)
    apart = framework in CONFIG.apart
    if apart:  # those that came since the last look, as far as the budget goes
        at_once = np.clip(prompts * poll, 1.0, np.maximum(budget / prompt, 1.0))
    elif any(d.launch.poll_interval for d in loads):  # until every rank has one
        ranks = np.array([d.layout.attention_dp for d in loads], np.float64)
        at_once = np.maximum(at_once, np.where(poll > 1.0, np.minimum(ranks, running), 1.0))
    beside = 0.0 if apart else running
    decode = Step(decodes=running, decode_kv_tokens=running * context, logits_rows=running)
    prefill = Step(
        prefills=at_once,
        prefill_tokens=at_once * prompt,
        prefill_pairs=at_once * prompt * (prompt + 1.0) / 2.0,
        prefill_kv_tokens=at_once * prompt,
        decodes=beside * np.ones_like(prompts),
        decode_kv_tokens=beside * context,
        logits_rows=beside + at_once,
    )
    decode_weight = np.ones_like(prompts) if apart else 1.0 - prompts / at_once
    return [(decode, decode_weight), (prefill, prompts / at_once)]


def kv_tokens(replica: Replica, *, of_rest: bool) -> float:
    """Return the tokens that the KV cache of a replica holds beside the weights."""
    weights = weight_bytes(replica.model, replica.layout, replica.dtype)
    usable: float = CONFIG.memory_fraction * replica.gpu.hbm_bytes - weights
    if of_rest:
        usable += (1.0 - CONFIG.memory_fraction) * weights
    return max(1.0, usable / replica.kv_token_bytes)


FAMILIES = ("gemm", "experts", "prefill", "decode", "vector")
TRANSFERRED = {family: f"transferred_{family}" for family in FAMILIES}
"""Columns of kernels that were not measured on the GPU they run on."""

MANY = {family: f"many_{family}" for family in ("gemm", "experts")}
"""Columns of products with many tokens."""

PACES, HOST_TIMES = ("paces", "transferred", "many"), ("host_s", "sequence_s")
GAPS = ("layer_s", *HOST_TIMES)
KINDS = ("index_layer_s", "state_layer_s")
COLUMNS = ("fixed", *FAMILIES, *TRANSFERRED.values(), *MANY.values(), "messages", *GAPS, *KINDS)
"""Terms of a step's time. Kernels and messages without a fitted pace have a pace of 1."""

TIMES = ("fixed", *FAMILIES, *TRANSFERRED.values(), *MANY.values(), "messages")


def _kernels_of(name: str) -> dict[str, Any]:
    """Return the kernel libraries of a runtime; a runtime like another adds to its libraries."""
    like = SAME_CONSTANTS.get(name, name)
    return {**ENGINES[like]["kernels"], **ENGINES[name].get("kernels", {})}


def _framework_of(name: str) -> str:
    return name.partition("_")[0]


def _alike(name: str) -> list[str]:
    return [other for other, engine in SAME_CONSTANTS.items() if engine == name]


def bare(name: str) -> Runtime:
    """Return a runtime without gaps and host times."""
    nothing: dict[str, Any] = dict.fromkeys(GAPS, 0.0)
    return Runtime(
        name=name,
        framework=_framework_of(name),
        **nothing,
        kernels=_kernels_of(name),
        norms_in_sums=ENGINES[name].get("norms_in_sums", False),
        batch_times=batch_times_of(name),
        prompt_layer_s=prompt_layer_s_of(name),
    )


def prompt_layer_s_of(name: str) -> Mapping[str, float]:
    """Return the host's time to launch a layer's kernels beside a prompt; empty under CUDA graphs.

    It is that of the newest measured host, on any cluster.
    """
    if launched := ENGINES[name].get("prompts_as"):
        return {ANY: load_runtime(launched["runtime"]).prompt_layer_s[launched["host"]]}
    return {}


def batch_times_of(name: str) -> dict[str, float]:
    """Return the slowdown of a release's batched expert kernels against current ones."""
    if slower := ENGINES[name].get("slower"):
        kernels = slower["kernels"]
        return {kernels: load_runtime(slower["as"]).batch_times[kernels]}
    return {}


def step_columns(replica: Replica, step: Step) -> Floats:
    """Return the columns of a step; one row per load."""
    part = stage_of(replica.model, replica.layout, 0)
    size = np.asarray(step.decodes, np.float64).size
    table = {name: np.zeros(size) for name in COLUMNS}
    share = slowdown(replica.gpu)
    for row in part_rows(replica, step, part):
        for name, seconds in _columns_of(row, replica, share):
            table[name] += seconds
    if replica.runtime.prompt_layer_s:
        busy_s = sum(table[name] for name in TIMES)
        table["fixed"] += replica.runtime.launch_s(
            part.layers, 0.0, busy_s, replica.cluster, prefills=step.prefills
        )
    counts: dict[str, Column] = {
        "layer_s": part.layers,
        "host_s": 1.0,
        "sequence_s": replica.hosted(step.prefills + step.decodes),
        "index_layer_s": part.layers * (replica.model.index_top_k > 0),
        "state_layer_s": replica.model.state_layers,
    }
    for name, count in counts.items():
        table[name] += count
    return np.stack([table[name] for name in COLUMNS], axis=-1)


def _columns_of(row: Row, replica: Replica, share: float) -> Iterator[tuple[str, Floats]]:
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
    """Yield the constants: paces by architecture or fabric, gaps of layers, host times of engines.

    All engines share the gaps of a layer. A kind of layer that some releases name as their own has
    a gap in these releases alone.
    """
    prior = CONFIG.priors
    column = {name: columns[:, i] for i, name in enumerate(COLUMNS)}
    architecture = np.array([replica.gpu.architecture for replica in replicas])
    fabric = np.array([replica.cluster.fabric_of(replica.gpu) for replica in replicas])
    engine = np.array([SAME_CONSTANTS.get(name, name) for name in runtimes])
    release = np.array(runtimes)
    for name, families in CONFIG.paces.items():
        for family in families:
            is_kernel = family in FAMILIES
            taken = column[family] + (column[TRANSFERRED[family]] if is_kernel else 0.0)
            mine = taken * ((architecture if is_kernel else fabric) == name)
            yield Constant(f"paces.{name}.{family}", mine, *prior.get(family, prior["kernels"]))
    is_shared = np.isin(architecture, CONFIG.many)
    for family, many in MANY.items():
        yield Constant(f"many.{family}", column[many] * is_shared, *prior["many"])
    yield Constant("layer_s", column["layer_s"], *prior["layer_s"])
    for name in sorted(set(engine.tolist())):
        for time in HOST_TIMES:
            yield Constant(f"{name}.{time}", column[time] * (engine == name), *prior[time])
    for kind in KINDS:
        apart = [name for name, facts in ENGINES.items() if kind in facts.get("own", ())]
        for name in apart:
            yield Constant(f"{name}.{kind}", column[kind] * (release == name), *prior["kind"])
        if not apart:
            yield Constant(kind, column[kind], *prior["kind"])


def fixed_of(columns: Floats, constants: Sequence[Constant]) -> Floats:
    """Return the part of each row's time that no constant multiplies."""
    times_s = columns[:, [COLUMNS.index(name) for name in TIMES]].sum(axis=1)
    fitted = (c.column for c in constants if c.name.partition(".")[0] in PACES)
    return np.asarray(times_s - sum(fitted), np.float64)


def _runtime_table(name: str, value: Mapping[str, float]) -> dict[str, Any]:
    own: dict[str, Any] = {"layer_s": value["layer_s"]}
    own |= {time: value[f"{SAME_CONSTANTS.get(name, name)}.{time}"] for time in HOST_TIMES}
    own |= {kind: value.get(f"{name}.{kind}", value.get(kind, 0.0)) for kind in KINDS}
    facts = {fact: ENGINES[name][fact] for fact in CONFIG.facts if fact in ENGINES[name]}
    facts = {"framework": _framework_of(name), **facts, **own, **_host_of(name, value)}
    if launched := prompt_layer_s_of(name):
        facts["prompt_layer_s"] = dict(launched)
    table: dict[str, Any] = {"runtime": facts}
    for device, families in CONFIG.paces.items():
        paces = {family: value[f"paces.{device}.{family}"] for family in families}
        table.setdefault("paces", {})[device] = paces
    table["many"] = {
        chip: {family: value[f"many.{family}"] for family in MANY} for chip in CONFIG.many
    }
    return table


def left_out_table(name: str, value: Mapping[str, float]) -> dict[str, Any]:
    """Return the constants of a runtime fitted without a group, and those of its other releases."""
    table = _runtime_table(name, value)
    for other in _alike(name):
        own = {kind: value[f"{other}.{kind}"] for kind in ENGINES[other].get("own", ())}
        if found := own | _host_of(other, value):
            table[other] = found
    return table


def _host_of(name: str, value: Mapping[str, float]) -> dict[str, float]:
    whose = ENGINES[name].get("host")
    return {time: value[f"{whose}.{time}"] for time in HOST_TIMES} if whose else {}


LEFT_OUT = PACKAGES / "lab" / "calibration" / "left_out"
DECODE = [COLUMNS.index(name) for name in ("decode", TRANSFERRED["decode"])]


def fit_engines(reference: Path, _only: Sequence[str]) -> Iterator[Calibration]:
    """Yield all runtimes, fitted together, and their constants without each group."""
    rows = [row for row in silicon(reference) if not row.excluded]
    batches = static_rows(reference)
    columns, replicas = _deployed_columns(rows)
    older, theirs = static_columns(batches)
    together = np.concatenate([columns, older])
    frameworks = [row.framework for row in rows] + [SESSION] * len(batches)
    runtimes = [row.runtime for row in rows] + [SESSION] * len(batches)
    groups = [row.group for row in rows] + [row.group for row in batches]
    constants = list(constants_of(together, replicas + theirs, runtimes))
    problem = LeastSquares(
        measured_s=np.array([r.tpot_s for r in rows] + [b.measured_s for b in batches]),
        groups=groups,
        fixed_s=fixed_of(together, constants),
        constants=constants,
    )
    fitted = fit_by_group(problem)
    models = np.array([row.model for row in rows] + [""] * len(batches))
    without = dict(fitted.without) | {
        model: solve(problem, models != model) for model in sorted({row.model for row in rows})
    }
    newer = np.array(newer_groups(rows) + [""] * len(batches))
    without |= {group: solve(problem, newer != group) for group in sorted({*newer} - {""})}
    days = np.array([row.measured or "" for row in rows] + [""] * len(batches))
    without |= {until(day): solve(problem, days < day) for day in CONFIG.days}
    error = fitted.held_out_s / problem.measured_s - 1.0
    for name in sorted(set(frameworks)):
        whose = _framework_of(name)  # all its runtimes, as a later one may replace a group's
        named = {g for g, f in zip(groups, frameworks, strict=True) if _framework_of(f) == whose}
        named |= {row.model for row in rows if row.framework == name} | ({*newer} - {""})
        named |= {until(day) for day in CONFIG.days}
        held_out = error[np.array(frameworks) == name]
        tables = {g: left_out_table(name, problem.named(without[g])) for g in sorted(named)}
        evidence: dict[str, Any] = {"rows": held_out.size, "errors": held_out}
        if newest := max((row.measured or "" for row in rows if row.framework == name), default=""):
            evidence["provenance"] = {"newest": newest[:10]}
        file = LEFT_OUT / "runtimes" / f"{name}.toml"
        yield declared("engines", file=file, content={"without": tables}, **evidence)
        for one in (name, *_alike(name)):
            content = _runtime_table(one, problem.named(fitted.values))
            content["kernels"] = _kernels_of(one)
            if ENGINES[one].get("is_launch", False):
                content = {"runtime": {"like": name}, "kernels": ENGINES[one]["kernels"]}
            if slower := batch_times_of(one):
                content["batch_times"] = slower
            yield declared("engines", name=one, content=content, **evidence)


def _deployed_columns(rows: Sequence[Deployed]) -> tuple[Floats, list[Replica]]:
    columns = np.zeros((len(rows), len(COLUMNS)))
    replicas: dict[int, Replica] = {}
    for indices in by_replica(rows).values():
        same = [rows[i] for i in indices]
        replica = deployed_replica(same[0], bare(same[0].runtime))
        for step, weight in steady_state(replica, same):
            columns[indices] += weight[:, None] * step_columns(replica, step)
        replicas |= dict.fromkeys(indices, replica)
    return columns, [replicas[i] for i in range(len(rows))]


def static_columns(rows: Sequence[StaticBatch]) -> tuple[Floats, list[Replica]]:
    """Return the columns of a whole batch, and the replica, of each row."""
    columns, replicas = np.zeros((len(rows), len(COLUMNS))), []
    for i, row in enumerate(rows):
        replica, batch = row.replica(bare(SESSION)), np.array([float(row.batch)])
        decodes = decode_step(batch, row.prompt + row.output / 2.0)
        prefill = step_columns(replica, prefill_step(batch, float(row.prompt)))
        decode = step_columns(replica, decodes)
        if not row.shares_keys:
            apart = dataclasses.replace(replica.model, kv_heads=replica.model.heads)
            unshared = step_columns(dataclasses.replace(replica, model=apart), decodes)
            decode[:, DECODE] = unshared[:, DECODE]
        columns[i] = (prefill + (row.output - 1.0) * decode)[0]
        replicas.append(replica)
    return columns, replicas
