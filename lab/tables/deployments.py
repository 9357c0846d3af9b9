"""Deployments measured in public: InferenceMAX and NVIDIA's gap analyses, one row per load.

`deployments.toml` holds tables, clients, and rules by which rows are left out.
`launch_recipes.toml` holds the launch options of InferenceX's scripts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lab.tables.records import four_bit_experts, is_gpu, is_model, known_rows, model_name
from lab.tables.rows import Record, evaluated, read_records
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import FRAMEWORKS, load_runtime
from simulators.core.errors import UserError
from simulators.core.folder import read_toml
from simulators.serving.measured.deployments import INFERENCEX, Client, Deployed, EngineLaunch
from simulators.serving.options import MTP, SpeculationConfig
from simulators.workload.llm.parallelism import Parallelism

FACTS = Record(read_toml(Path(__file__).with_suffix(".toml")))
RECIPES = read_toml(Path(__file__).with_name("launch_recipes.toml"))
WARM_UP: Mapping[str, Any] = FACTS.warm_up
SILICON, PEER, QWEN3_32B, QWEN3_32B_PEER, ANNOTATIONS, RESOLVED, SWEEPS, DATABASE = (
    FACTS.tables[name]
    for name in (
        *("silicon", "peer", "qwen3_32b", "qwen3_32b_peer", "annotations", "resolved", "sweeps"),
        "database",
    )
)
NVIDIA, NVIDIA_TRTLLM = (
    Client(**(FACTS.clients[name] | {"inferred": tuple(FACTS.clients[name]["inferred"])}))
    for name in ("nvidia", "nvidia_trtllm")
)


class RecipeLoad(NamedTuple):
    """The load that a script starts an engine for."""

    prompt: int  # longest, in tokens
    output: int
    clients: int
    tp: int  # GPUs of the engine
    attention_dp: bool


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Launch options of one script; `launch_recipes.toml` explains expressions of a load."""

    script: str
    since: str = ""
    budget: str = "8192"
    poll_interval: str = "0"
    memory_fraction: str | float = 0.0  # 0: not set
    kv_dtype: str = ""
    runtime: str = ""
    drafts: str = "0"  # draft tokens of multi-token prediction

    def launch(self, load: RecipeLoad) -> EngineLaunch:
        """Return the options for a load."""
        budget, interval = self._of(load, self.budget), self._of(load, self.poll_interval)
        return EngineLaunch(
            int(budget), int(interval), float(self._of(load, str(self.memory_fraction)))
        )

    def speculation(self, load: RecipeLoad) -> SpeculationConfig:
        """Return the options of speculation for a load."""
        drafts = int(self._of(load, self.drafts))
        return SpeculationConfig(MTP, num_draft_tokens=drafts) if drafts else SpeculationConfig()

    @staticmethod
    def _of(load: RecipeLoad, text: str) -> Any:
        rule = {"value": RECIPES["rules"].get(text, text)}
        return evaluated(rule, load._asdict())["value"]


def recipe_of(
    framework: str,
    model: str,
    gpu: str,
    precision: str,
    date: str | None,
    engines: str = "engines",
) -> Recipe | None:
    """Return the script that started a row's engine, the oldest known without a date.

    `engines`: the table of recipes, `drafting` with multi-token prediction.
    """
    models = RECIPES[engines].get(framework, {})
    known = [Recipe(**one) for one in models.get(model, {}).get(gpu, {}).get(precision, ())]
    found = [recipe for recipe in known if recipe.since <= (date or "")]
    return found[-1] if found else (known[0] if known else None)


class SweepLine(NamedTuple):
    """One line of a sweep of InferenceX: the degrees of an engine, and its range of clients."""

    date: str  # of the snapshot
    engine: tuple[str, ...]  # framework, model, GPU, precision
    lengths: tuple[int, int]  # longest prompt and answer, in tokens
    tp: int
    ep: int
    attention_dp: bool
    fewest: int
    most: int


def defined_cut(reference: Path, row: Mapping[str, Any], ep: int = 0) -> Parallelism | None:
    """Return the parallelism of a run, as its sweep defined it; None without a sweep.

    The first snapshot from the run's day on is used, else the last one. A load that no line covers
    has the parallelism of the other lines of its lengths, if they agree.

    Args:
        reference: the folder of measured tables.
        row: a row of InferenceX, whose `tp_size` is all GPUs of the engine.
        ep: the degree of expert parallelism; 0: unknown.
    """
    gpus, lengths = int(row["tp_size"]), (int(row["isl"]), int(row["osl"]))
    engine = row["framework"], model_name(row["model"]), row["gpu"], row["precision"]
    same = [
        one
        for one in _sweep_lines(reference)
        if (one.engine, one.lengths, one.tp) == (engine, lengths, gpus) and ep in (0, one.ep)
    ]
    dates, day = sorted({one.date for one in same}), row["measured_date"] or ""
    asked = next((date for date in dates if date >= day), dates[-1] if dates else "")
    then = [one for one in same if one.date == asked]
    covering = [one for one in then if one.fewest <= row["concurrency"] <= one.most]
    layouts = {(one.ep, one.attention_dp) for one in covering or then}
    if len(layouts) != 1:
        return None
    ((experts, is_data_parallel),) = layouts
    tp, ranks = (1, gpus) if is_data_parallel else (gpus, 1)
    return Parallelism(tp=tp, ep=experts, attention_dp=ranks)


@functools.lru_cache(maxsize=2)
def _sweep_lines(reference: Path) -> tuple[SweepLine, ...]:
    return tuple(_read_sweeps(reference / SWEEPS)) if (reference / SWEEPS).is_file() else ()


def _read_sweeps(table: Path) -> Iterator[SweepLine]:
    """Yield the lines; those from June 2026 on, when no row was measured, have another format."""
    for row in read_records(table, multinode=False):
        loads = json.loads(row.search_space)
        if row.disagg or not is_model(row.model) or isinstance(loads, dict):
            continue
        framework = "trtllm" if row.framework == "trt" else row.framework
        gpu = f"{row.runner.partition('-')[0]}_sxm"
        engine = (framework, model_name(row.model), gpu, row.precision)
        for load in loads:
            for one in load["search-space"]:
                if one.get("spec-decoding", "none") == "none":
                    degrees = (one["tp"], one.get("ep", 1), one.get("dp-attn", False))
                    clients = (one["conc-start"], one["conc-end"])
                    lengths = (load["isl"], load["osl"])
                    yield SweepLine(row.date, engine, lengths, *degrees, *clients)


@dataclass(frozen=True, kw_only=True)
class PublicDeployment(Deployed):
    """A measured deployment as it was published, beside aiconfigurator's prediction."""

    name: str
    measured: str | None  # date
    family: tuple[str, ...]  # model, GPU, framework, precision and version
    peer_ttft_s: float | None
    peer_tpot_s: float | None
    excluded: str  # reason to leave the row out of limited figures; empty: none
    is_median: bool = False  # times are medians over requests, else means
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p90_s: float | None = None
    tpot_p99_s: float | None = None

    @property
    def group(self) -> str:
        """The model and GPU, which are held out together."""
        return f"{self.model}.{self.gpu}"

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.model).experts == 0


def silicon(reference: Path, table: str = SILICON, peer: str = PEER) -> list[PublicDeployment]:
    """Return the aggregated deployments of a table of the reference folder, without copies.

    Without the table of aiconfigurator there are no predictions of it; without annotations no row
    is suspected.
    """
    peers, marks = _by_id(reference / peer), _by_id(reference / ANNOTATIONS)
    known = _by_id(reference / RESOLVED, "twin_of_silicon_id")
    found: dict[tuple[object, ...], PublicDeployment] = {}
    rows = read_records(reference / table, mode="agg")
    names = {row.id for row in rows}
    rows = [Record({"suspect_mtp": False} | marks.get(row.id, {}) | row) for row in rows]
    for row in rows:
        row["is_drafting"] = bool(
            known.get(row.id, {"spec_decode": row.suspect_mtp})["spec_decode"]
        )
    aggregated = known_rows(
        [row for row in rows if row.concurrency and row.get("duplicate_of") not in names],
        table,
        model=is_model,
        gpu=is_gpu,
        framework=FRAMEWORKS.__contains__,
    )
    for row in aggregated:
        one = _deployed(row, peers.get(row.id, {}), _layout(row, reference))
        times = (round(row.ttft_ms, 1), round(row.tpot_ms, 1))
        load = (one.layout, one.clients, one.prompt, one.output)
        found.setdefault((*one.family, *load, *times), one)
    return list(found.values())


def database(reference: Path, vendor: str = "") -> list[PublicDeployment]:
    """Return the deployments of InferenceX's database on a vendor's GPUs, of all without one.

    Aggregated runs without speculation. Older rows have only medians. A release that is newer than
    the engine's file knows is today's.
    """
    rows = [
        row
        for row in read_records(reference / DATABASE, score_first=True)
        if vendor in ("", load_gpu(row.gpu).vendor)
    ]
    return [_of_database(row) for row in rows]


def drafting(reference: Path) -> list[PublicDeployment]:
    """Return the aggregated deployments that ran with multi-token prediction, without copies.

    Runs of InferenceX's database, and rows of the tables whose image only sweeps with drafts use.
    """
    runs = read_records(reference / DATABASE, spec_decode="mtp", disaggregated=False)
    names = {"date": "measured_date", "ttft_median_ms": "ttft_ms"}
    found = []
    for row in runs:
        facts = row | {new: row[old] for old, new in names.items()} | {"is_drafting": False}
        found.append(replace(_of_database(row, "drafting"), excluded=excluded(facts)))
    known = read_records(reference / RESOLVED, spec_decode="mtp", disaggregated=False)
    sure = {row.twin_of_silicon_id for row in known}
    for row in read_records(reference / ANNOTATIONS, suspect_mtp=True):
        if row.strength == FACTS.sure_strength:
            sure.add(row.id)
    times = {(one.gpu, one.clients, round(one.tpot_s, 6)) for one in found}
    for one in silicon(reference):
        recipe = recipe_of(
            one.framework, one.model, one.gpu, one.family[3], one.measured, "drafting"
        )
        if (one.gpu, one.clients, round(one.tpot_s, 6)) in times or recipe is None:
            continue
        if one.name in sure:
            gpus, is_data_parallel = one.layout.width, one.layout.attention_dp > 1
            load = RecipeLoad(one.prompt, one.output, one.clients, gpus, is_data_parallel)
            launch, drafts = recipe.launch(load), recipe.speculation(load)
            found.append(replace(one, launch=launch, speculation=drafts, excluded=""))
    return found


def _of_database(row: Record, engines: str = "engines") -> PublicDeployment:
    found = re.search(r":v(\d+(\.\d+)+)", row.framework_version or "")
    version, measured = found.group(1) if found else "", row.date
    try:
        load_engine(row.framework).runtime_of_release(version)
    except UserError:
        version = measured = ""
    recipe = recipe_of(row.framework, row.model, row.gpu, row.precision, row.date, engines)
    load = RecipeLoad(row.isl, row.osl, row.concurrency, row.decode_tp, row.decode_dp_attention)
    statistic = "mean" if row.tpot_mean_ms else "median"
    tp, dp = (1, row.decode_tp) if row.decode_dp_attention else (row.decode_tp, 1)
    percentiles = {
        f"{name}_s": row[f"{name}_ms"] and row[f"{name}_ms"] * 1e-3
        for name in ("ttft_p90", "ttft_p99", "tpot_p90", "tpot_p99")
    }
    return PublicDeployment(
        name=f"{row.run_id} {row.isl} {row.osl} {row.concurrency}",
        measured=row.date,
        family=(row.model, row.gpu, row.framework, row.precision, version),
        framework=row.framework,
        model=row.model,
        gpu=row.gpu,
        layout=Parallelism(tp=tp, attention_dp=dp, ep=row.decode_ep),
        dtype=dtype_of(row.model, row.gpu, row.precision),
        kv_dtype=(recipe.kv_dtype if recipe else "") or "fp8",
        clients=row.concurrency,
        prompt=row.isl,
        output=row.osl,
        launch=recipe.launch(load) if recipe else EngineLaunch(),
        speculation=recipe.speculation(load) if recipe else SpeculationConfig(),
        runtime=runtime_of(row.framework, version, measured),
        release=release_of(version, measured),
        ttft_s=row[f"ttft_{statistic}_ms"] * 1e-3,
        tpot_s=row[f"tpot_{statistic}_ms"] * 1e-3,
        peer_ttft_s=None,
        peer_tpot_s=None,
        excluded="",
        is_median=statistic == "median",
        is_fresh=row.date < WARM_UP["since"] or load_gpu(row.gpu).vendor in WARM_UP["by_shape"],
        **percentiles,
    )


NEWER = "newer"
"""Group of the rows of an engine that are newer than the fit, as in `vllm.newer`."""


def newer_groups(rows: Sequence[PublicDeployment]) -> list[str]:
    """Return the group of each row in the newest third of its engine's, by date; empty of others.

    Rows without a date are the oldest; all rows of a day are in the same part.
    """
    dates = [row.measured or "" for row in rows]
    since = {}
    for framework in {row.framework for row in rows}:
        own = sorted(
            date for date, row in zip(dates, rows, strict=True) if row.framework == framework
        )
        since[framework] = own[len(own) * 2 // 3]
    return [
        f"{row.framework}.{NEWER}" if date >= since[row.framework] else ""
        for date, row in zip(dates, rows, strict=True)
    ]


def until(day: str) -> str:
    """Return the group of the rows that were not measured before a day, in names of left-out fits.

    >>> until("2026-03-01")
    'until_2026_03_01'
    """
    return f"until_{day.replace('-', '_')}"


def _by_id(table: Path, name: str = "id") -> dict[str, dict[str, Any]]:
    return {row[name]: row for row in read_records(table)} if table.is_file() else {}


def client_of(provenance: str, framework: str) -> Client:
    """Return the client whose program measured a row, or that it resembles."""
    if FACTS.of_nvidia not in provenance:
        return INFERENCEX
    return NVIDIA_TRTLLM if framework == "trtllm" else NVIDIA


def _deployed(row: Record, peer: Mapping[str, Any], layout: Parallelism) -> PublicDeployment:
    """Return one row.

    Assumed where the table is silent: of mixtures in 4 bits only the experts are; the KV cache is
    fp8 where weights are narrower than bf16; there is no speculation.
    """
    model, framework, clients = model_name(row.model), row.framework, int(row.concurrency)
    precision, version = row.precision or "bf16", row.framework_version or ""
    client, recipe = client_of(row.provenance, framework), None
    if client is INFERENCEX:
        recipe = recipe_of(framework, model, row.gpu, precision, row.measured_date)
    load = RecipeLoad(row.isl, row.osl, clients, layout.width, layout.attention_dp > 1)
    default_kv = "bf16" if precision == "bf16" else "fp8"
    is_answered = bool(peer.get("aic_ok"))
    return PublicDeployment(
        **{ours: row[theirs] for ours, theirs in FACTS.fields.items()},
        family=(model, row.gpu, framework, precision, version),
        model=model,
        layout=layout,
        dtype=dtype_of(model, row.gpu, precision),
        kv_dtype=(recipe.kv_dtype if recipe else "") or default_kv,
        clients=clients,
        crowded=FACTS.crowded in row.provenance,
        client=client,
        launch=recipe.launch(load) if recipe else EngineLaunch(),
        runtime=(recipe.runtime if recipe else "")
        or runtime_of(framework, version, row.measured_date or ""),
        release=release_of(version, row.measured_date or ""),
        ttft_s=row.ttft_ms * 1e-3,
        tpot_s=row.tpot_ms * 1e-3,
        peer_ttft_s=peer["aic_ttft_ms"] * 1e-3 if is_answered else None,
        peer_tpot_s=peer["aic_tpot_ms"] * 1e-3 if is_answered else None,
        excluded=excluded(row),
    )


def runtime_of(framework: str, version: str, measured: str) -> str:
    """Return the runtime of the release that a public deployment ran.

    Launch scripts choose the kernels of experts, so factors of releases that were launched without
    options do not apply.

    >>> runtime_of("sglang", "0.5.9", "2026-04-03"), runtime_of("vllm", "0.11.2", "2025-12-08")
    ('sglang_0_5_9', 'vllm')
    >>> runtime_of("sglang", "nightly-dev-20260402-d7256eb6", "2026-04-08")
    'sglang'
    """
    runtime = load_engine(framework).runtime_of_release(release_of(version, measured))
    return load_runtime(runtime).like or runtime


def release_of(version: str, measured: str) -> str:
    """Return the release number of an image, or a date.

    Nightly images are as old as their names say, or else as the measurement.
    """
    numbers = re.match(r"\d+(\.\d+)+", version)
    built = re.search(r"-(\d{4})(\d\d)(\d\d)-", version)
    date = "-".join(built.groups()) if built else measured
    return numbers.group() if numbers else date


def _layout(row: Record, reference: Path) -> Parallelism:
    """Return the parallelism of a row.

    Tables of 2025, which name no release, omit expert parallelism, and where both degrees of
    attention are `n` the source has multiplied out one stage of `n` GPUs: there the sweep that the
    row belongs to decides, and without one attention is taken to be data-parallel. Where a degree
    of attention is the product of both degrees of experts, which are equal, the stage has as many
    GPUs as either: so say all 13 of these rows that InferenceX's database has. Where the origin
    states no groups of attention but a batch per rank, there are as many as share the clients.
    """
    tp, dp, ep = (int(row[n] or 1) for n in ("tp_size", "attention_dp_size", "moe_ep_size"))
    has_experts = load_model(model_name(row.model)).experts > 0
    if row.get("suspect_parallelism"):
        return Parallelism(tp=1, ep=ep, attention_dp=ep) if dp > 1 else Parallelism(tp=ep, ep=ep)
    if row.attention_dp_size is None and row.concurrency == tp * (row.batch_size or 0):
        return Parallelism(tp=1, ep=ep if has_experts else 1, attention_dp=tp)
    is_multiplied = tp == dp > 1
    if is_multiplied or (has_experts and not row.framework_version):
        layout = Parallelism(tp=1, ep=dp, attention_dp=dp) if is_multiplied else Parallelism(tp=tp)
        return defined_cut(reference, row, ep=dp if is_multiplied else 0) or layout
    return Parallelism(tp=tp, ep=ep if has_experts else 1, attention_dp=dp)


def dtype_of(model: str, gpu: str, precision: str) -> str:
    """Return the precision of a deployment: mixtures in 8 bits are scaled in blocks."""
    if precision == "bf16" or load_model(model).experts == 0:
        return precision
    if precision == "fp8":
        return "fp8_block"
    return four_bit_experts(model, gpu) if precision == "fp4" else "bf16+w4a16"


def excluded(row: Mapping[str, Any]) -> str:
    """Return the reason why a row ran another deployment than it states; empty without one."""
    facts = dict(row) | {"model": model_name(row["model"])}
    for rule in FACTS.excluded:
        is_met = all(re.fullmatch(p, str(facts[name])) for name, p in rule["where"].items())
        if is_met and facts["ttft_ms"] > rule.get("ttft_above_ms", 0.0):
            return str(rule["reason"])
    return ""
