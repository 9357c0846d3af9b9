"""Deployments measured in public: InferenceMAX and NVIDIA's gap analyses, one row per load.

Rows are left out by the rules of `deployments.toml` alone. No rule reads a prediction, but some
were found through residuals, which flatters, so the claims also print figures with these rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tables.catalog_names import four_bit_experts, is_gpu, is_model, model_name
from lab.tables.records import known_rows
from lab.tables.rows import Record, read_records
from lab.tables.serving.launch_recipes import RecipeLoad, recipe_of
from lab.tables.serving.sweeps import defined_cut
from simulators.catalog.engine import load_engine
from simulators.catalog.model import load_model
from simulators.composition.replica import FRAMEWORKS, load_runtime
from simulators.core.folder import read_toml
from simulators.serving.measured_deployments import INFERENCEX, Client, Deployed, EngineLaunch
from simulators.workload.llm.parallelism import Parallelism

SILICON = "serving_measured/inferencex_aic_silicon.parquet"
PEER = "serving_measured/peer_aiconfigurator_on_silicon.parquet"
QWEN3_32B = "serving_measured/inferencex_aic_silicon_qwen3_32b.parquet"
"""Rows that nothing was fitted to."""

QWEN3_32B_PEER = "serving_measured/peer_aiconfigurator_on_silicon_qwen3_32b.parquet"
ANNOTATIONS = "serving_measured/silicon_row_annotations.parquet"

FACTS = read_toml(Path(__file__).with_suffix(".toml"))
NVIDIA, NVIDIA_TRTLLM = (
    Client(**(FACTS["clients"][name] | {"inferred": tuple(FACTS["clients"][name]["inferred"])}))
    for name in ("nvidia", "nvidia_trtllm")
)

OF_NVIDIA = "source_file=data/"
"""In the provenance of what NVIDIA measured itself. Other files named gap analyses repeat rows of
InferenceX."""

CROWDED = "trtllm/1.0.0rc3/meta-llama"
"""A source whose engines take no more requests than are stated, while one more is in flight: its
first tokens wait for the time of a whole answer over the clients."""


@dataclass(frozen=True, kw_only=True)
class PublicDeployment(Deployed):
    """A measured deployment as it was published, beside aiconfigurator's prediction."""

    name: str
    family: tuple[str, ...]  # model, GPU, framework, precision and version
    peer_ttft_s: float | None
    peer_tpot_s: float | None
    excluded: str  # reason to leave it out of limited figures; empty: none

    @property
    def group(self) -> str:
        """A model on a GPU, held out together."""
        return f"{self.model}.{self.gpu}"

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return load_model(self.model).experts == 0


def silicon(reference: Path, table: str = SILICON, peer: str = PEER) -> list[PublicDeployment]:
    """Return the aggregated deployments of a table of the reference folder, without copies.

    Without the table of aiconfigurator it predicts none; without annotations no row is suspected.
    """
    peers, marks = _by_id(reference / peer), _by_id(reference / ANNOTATIONS)
    found: dict[tuple[object, ...], PublicDeployment] = {}
    rows = read_records(reference / table, mode="agg")
    names = {row.id for row in rows}
    rows = [Record({"suspect_mtp": False} | marks.get(row.id, {}) | row) for row in rows]
    aggregated = known_rows(
        [row for row in rows if row.concurrency and row.get("duplicate_of") not in names],
        table,
        model=is_model,
        gpu=is_gpu,
        framework=FRAMEWORKS.__contains__,
    )
    for row in aggregated:
        one = _deployed(row, peers.get(row.id, {}), _cut(row, reference))
        times = (round(row.ttft_ms, 1), round(row.tpot_ms, 1))
        load = (one.cut, one.clients, one.prompt, one.output)
        found.setdefault((*one.family, *load, *times), one)
    return list(found.values())


def _by_id(table: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a table that may be missing."""
    return {row.id: row for row in read_records(table)} if table.is_file() else {}


def client_of(provenance: str, framework: str) -> Client:
    """Return the client whose program measured a row, or that it resembles."""
    if OF_NVIDIA not in provenance:
        return INFERENCEX
    return NVIDIA_TRTLLM if framework == "trtllm" else NVIDIA


def _deployed(row: Record, peer: Mapping[str, Any], cut: Parallelism) -> PublicDeployment:
    """Return one row.

    Assumed where the table is silent: of mixtures in 4 bits only the experts are; the KV cache is
    fp8 where weights are narrower than bf16; nothing is speculated.
    """
    model, framework, clients = model_name(row.model), row.framework, int(row.concurrency)
    precision = row.precision or "bf16"
    is_answered = bool(peer.get("aic_ok"))
    client = client_of(row.provenance, framework)
    load = RecipeLoad(row.isl, row.osl, clients, cut.width, cut.attention_dp > 1)
    recipe = None
    if client is INFERENCEX:
        recipe = recipe_of(framework, model, row.gpu, precision, row.measured_date)
    narrow_kv = "bf16" if precision == "bf16" else "fp8"
    return PublicDeployment(
        name=row.id,
        family=(model, row.gpu, framework, precision, row.framework_version or ""),
        framework=framework,
        model=model,
        gpu=row.gpu,
        cut=cut,
        dtype=_dtype(model, row.gpu, precision),
        kv_dtype=(recipe.kv_dtype if recipe else "") or narrow_kv,
        clients=clients,
        prompt=row.isl,
        output=row.osl,
        crowded=CROWDED in row.provenance,
        client=client,
        launch=recipe.launch(load) if recipe else EngineLaunch(),
        runtime=runtime_of(framework, row.framework_version or "", row.measured_date or ""),
        ttft_s=row.ttft_ms * 1e-3,
        tpot_s=row.tpot_ms * 1e-3,
        peer_ttft_s=peer["aic_ttft_ms"] * 1e-3 if is_answered else None,
        peer_tpot_s=peer["aic_tpot_ms"] * 1e-3 if is_answered else None,
        excluded=excluded(row),
    )


def runtime_of(framework: str, version: str, measured: str) -> str:
    """Return the runtime of the release that a public deployment ran.

    Nightly images are as old as their names say, or else as the measurement. Launch scripts choose
    the kernels of experts, so factors of releases that were launched without options do not apply.

    >>> runtime_of("sglang", "0.5.9", "2026-04-03"), runtime_of("vllm", "0.11.2", "2025-12-08")
    ('sglang_0_5_9', 'vllm')
    >>> runtime_of("sglang", "nightly-dev-20260402-d7256eb6", "2026-04-08")
    'sglang'
    """
    numbers = re.match(r"\d+(\.\d+)+", version)
    built = re.search(r"-(\d{4})(\d\d)(\d\d)-", version)
    date = "-".join(built.groups()) if built else measured
    runtime = load_engine(framework).runtime_of_release(numbers.group() if numbers else date)
    return load_runtime(runtime).like or runtime


def _cut(row: Record, reference: Path) -> Parallelism:
    """Return the parallelism of a row.

    Tables of 2025, which name no release, omit expert parallelism, and where both degrees of
    attention are `n` the source has multiplied out one stage of `n` GPUs: there the sweep that the
    row belongs to is asked, and without one attention is taken to be data-parallel.
    """
    tp, dp, ep = (int(row[n] or 1) for n in ("tp_size", "attention_dp_size", "moe_ep_size"))
    has_experts = load_model(model_name(row.model)).experts > 0
    is_multiplied = tp == dp > 1
    if is_multiplied or (has_experts and not row.framework_version):
        cut = Parallelism(tp=1, ep=dp, attention_dp=dp) if is_multiplied else Parallelism(tp=tp)
        return defined_cut(reference, row, ep=dp if is_multiplied else 0) or cut
    return Parallelism(tp=tp, ep=ep if has_experts else 1, attention_dp=dp)


def _dtype(model: str, gpu: str, precision: str) -> str:
    """Return the precision of a deployment: mixtures in 8 bits are scaled in blocks."""
    if precision == "bf16" or load_model(model).experts == 0:
        return precision
    if precision == "fp8":
        return "fp8_block"
    return four_bit_experts(model, gpu) if precision == "fp4" else "bf16+w4a16"


def excluded(row: Mapping[str, Any]) -> str:
    """Return the reason why a row says nothing certain about its deployment; empty without one."""
    facts = dict(row) | {"model": model_name(row["model"]), "repository": row["model"]}
    for rule in FACTS["excluded"]:
        is_met = all(re.fullmatch(p, str(facts[name])) for name, p in rule["where"].items())
        if is_met and facts["ttft_ms"] > rule.get("ttft_above_ms", 0.0):
            return str(rule["reason"])
    return ""
