"""Export serving designs as the command line of an engine or the manifest of an orchestrator.

The TOML file of an engine lists the documented options; every option is checked against the list.
Designs that no engine can run are refused with the reason.
"""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from deploy.benchmark import Benchmark, benchmark
from deploy.forward_times import write_forward_times
from deploy.startup import checkpoint_in_dtype, context_length
from deploy.templates import filled, label
from simulators.catalog.cluster import cluster_for
from simulators.catalog.engine import ServingEngine, load_engine
from simulators.catalog.gpu import GPU_SCALES, load_gpu
from simulators.catalog.model import LanguageModel, checkpoint_of, load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import UnknownNameError, UserError, unknown
from simulators.core.fields import point_from, updated
from simulators.core.folder import ENGINES, Folder, read_toml
from simulators.serving.adapters import slots_of
from simulators.serving.deployment import deployment_of, pools_of
from simulators.serving.gpu_shares import shares_gpu
from simulators.serving.options import BY_TOKEN, CACHED, DRAFT, EAGLE, EAGLE3, FIXED, MEDUSA
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import skips_layers
from simulators.serving.speculation import shape_of

ORCHESTRATORS = Folder("orchestrator", "orchestrators", ".yaml", package="deploy")
"""Templates of manifests."""
OPTIONS = Folder("serving engine", "engines", ".jinja", package="deploy")
"""Folder with a template of options per engine, next to the TOML files of `ENGINES`."""
REFUSALS = OPTIONS.shipped / "_refusals.jinja"
TITLE, SCRIPT = (ORCHESTRATORS.shipped / name for name in ("_title.yaml", "_script.yaml"))
NODES = ORCHESTRATORS.shipped / "gpu_nodes.toml"

HEADS = (MEDUSA, EAGLE, EAGLE3)
"""Speculation methods with a separately trained head."""
HEAD = "DRAFT_HEAD"
"""Placeholder in a command for the repository of the draft head."""


@dataclass(frozen=True)
class EngineCommand:
    """Command of one replica.

    `options` follow the model; `file` is the content of `engine.yaml`, or empty.
    """

    engine: ServingEngine
    repository: str
    options: tuple[str, ...]
    nodes: int
    gpus: int
    file: str = ""

    @property
    def command(self) -> list[str]:
        """All the words of the command."""
        return [*self.engine.command, self.repository, *self.options]


@dataclass(frozen=True)
class WorkerGroup:
    """Replicas of a design, or of its prefill or decode pool; `point` describes the pool alone."""

    role: str
    launch: EngineCommand
    point: ServingPoint

    @property
    def gpus_per_node(self) -> int:
        """GPUs of a replica on each of its nodes."""
        return math.ceil(self.launch.gpus / self.launch.nodes)

    @property
    def host(self) -> str:
        """Name of the host whose launch times are simulated; empty without launches."""
        return deployment_of(self.point).hardware.replica.runtime.host


@dataclass(frozen=True)
class Speculation:
    """Speculative decoding in the words of an engine."""

    method: str
    model: str  # repository of the draft model; empty for n-gram lookup and MTP


class ServingDeployments:
    """Writes deployments for `sweeper export`."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the text that deploys a design; a comment contains `name`.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: unknown engine or orchestrator.
            UserError: no engine runs the design, or the target does not.
        """
        return deployment(point_from(ServingPoint, point), target, name)

    def forward_times(self, point: Mapping[str, Any], file: Path) -> int:
        """Write forward passes; see `deploy.forward_times.write_forward_times`."""
        return write_forward_times(point_from(ServingPoint, point), file)

    def benchmark(self, point: Mapping[str, Any], client: str, trace: str) -> Benchmark:
        """Return the benchmark that measures a design; see `deploy.benchmark.benchmark`."""
        design = point_from(ServingPoint, point)
        repository = repository_of(load_model(design.model), design.workload)
        return benchmark(design, engine_of(design), repository, client, trace)


DEPLOYMENTS = ServingDeployments()


def deployment(point: ServingPoint, target: str = "", name: str = "") -> str:
    """Return the text that deploys a design on a target, or on the engine its scheduler models."""
    known = (*ENGINES.names(), *ORCHESTRATORS.names())
    if target.isidentifier() and target not in known:
        raise UnknownNameError("target", target, known)
    is_manifest = target.endswith(ORCHESTRATORS.suffix) or target in ORCHESTRATORS.names()
    engine = engine_of(point) if is_manifest or not target else target
    if is_manifest and point.pools.prefill_gpus:
        workers = [
            WorkerGroup(role, launch_of(pool, engine), pool)
            for role, pool in zip(("prefill", "decode"), pools_of(point), strict=True)
        ]
    else:
        workers = [WorkerGroup("worker", launch_of(point, engine), point)]
    values = {
        "title": name or "design",
        "point": point,
        "model": load_model(point.model),
        "name": label(point.model),
        "workers": workers,
        "has_pools": len(workers) > 1,
        "has_autoscaling": 0 < point.autoscaling.min_replicas < point.replicas,
        "gpus_per_node": cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node,
        "single_launch": lambda: launch_of(point, engine),
        "node_selector": node_selector,
        "resource": resource,
        "skypilot_name": lambda gpu: read_toml(NODES)["skypilot"].get(load_gpu(gpu).name, ""),
    }
    title = filled(TITLE, **values).splitlines(keepends=True)
    text = filled(ORCHESTRATORS.find(target) if is_manifest else SCRIPT, **values)
    return "".join(dict.fromkeys(title)) + text


def resource(gpu: str) -> str:
    """Return the resource name by which a pod requests a GPU.

    Raises:
        UserError: no device plugin of the vendor is known.

    >>> resource("mi300x")
    'amd.com/gpu'
    """
    known, vendor = read_toml(NODES)["resources"], load_gpu(gpu).vendor
    if vendor not in known:
        raise unknown(f"no Kubernetes resource name is known for GPUs of '{vendor}'", vendor, known)
    return str(known[vendor])


def node_selector(gpu: str) -> dict[str, str] | None:
    """Return the node label of a GPU, or None if the label is unknown.

    >>> node_selector("h100_sxm")
    {'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3'}
    """
    table, sheet = read_toml(NODES), load_gpu(gpu)
    name, product = table["labels"].get(sheet.vendor), table["products"].get(sheet.name)
    return {name: product} if name and product else None


def engine_of(point: ServingPoint) -> str:
    """Return the engine that implements the design's scheduler.

    Raises:
        UserError: no engine does.
    """
    return _engines_of(point.scheduler)[0]


def launch_of(point: ServingPoint, engine: str) -> EngineCommand:
    """Return the command of one replica on an engine, given by name or path of its TOML file.

    Raises:
        UserError: the engine has no option for a feature of the design.
        Infeasible: the design cannot exist.
    """
    sheet = load_engine(engine)
    point = with_stated_options(point, sheet)
    if point.scheduler not in (*sheet.schedulers, *sheet.optional_schedulers):
        raise UserError(
            f"{sheet.name} does not implement the scheduler '{point.scheduler}'; engines that do: "
            f"{', '.join(_engines_of(point.scheduler))}"
        )
    deployment_of(point)  # raises where the design cannot exist
    filled(
        REFUSALS,
        point=point,
        engine=sheet,
        skips_layers=skips_layers(point),
        shares_gpu=shares_gpu(point),
        scales=[n for n in (*GPU_SCALES, "colocation.time_share") if attrgetter(n)(point) != 1.0],
    )
    model = load_model(point.model)
    options, file = _options(engine, sheet, point, model)
    repository, precision = checkpoint_in_dtype(
        model,
        repository_of(model, point.workload),
        point.dtype,
        sheet.dtypes[point.dtype],
    )
    words = (*precision, *options, *sheet.kv_dtypes[point.kv_dtype])
    undocumented = {word for word in words if word.startswith("--")} - {*sheet.options}
    assert not undocumented, f"{sheet.name} documents no option {undocumented}"
    gpus = point.tp * point.pp * point.attention_dp
    nodes = math.ceil(gpus / cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node)
    return EngineCommand(sheet, repository, words, nodes, gpus, file)


def with_stated_options(point: ServingPoint, engine: ServingEngine) -> ServingPoint:
    """Return a design with its engine's defaults written into its open options."""
    max_batch = point.max_num_seqs
    if point.max_batch is None and engine.defaults.tokens_limit_sequences:
        max_batch = min(max_batch, point.token_budget)
    return updated(
        point,
        {
            "chunk_size": point.token_budget,
            "max_batch": max_batch,
            "memory_fraction": point.gpu_memory_utilization,
            "cache.block_size": point.block_size,
            "cache.prefix_caching": point.is_prefix_caching,
        },
    )


def _options(
    engine: str, sheet: ServingEngine, point: ServingPoint, model: LanguageModel
) -> tuple[list[str], str]:
    """Return an engine's options, and the content of `engine.yaml`, which a line `---` precedes."""
    path = engine.removesuffix(".toml")
    replica = deployment_of(point).hardware.replica
    has_storage = bool(point.kv_tiers.nvme_bytes or point.kv_tiers.remote_bytes)
    text = filled(
        OPTIONS.find(engine if path == engine else f"{path}{OPTIONS.suffix}"),
        point=point,
        model=model,
        context=context_length(point, model),
        gpu=load_gpu(point.gpu),
        is_eager=replica.runtime.is_launching,
        has_tiers=bool(point.cache.prefix_host_bytes or has_storage),
        has_storage=has_storage,
        # Blocks of finished or of preempted requests are kept.
        has_prefix_cache=point.is_prefix_caching or point.cache.preemption == CACHED,
        adapter_slots=lambda: adapter_slots(point),
        draft_tokens=lambda: shape_of(point)[0],
        speculation=functools.partial(speculation_of, point, sheet.name),
    )
    options, _, file = text.partition("---\n")
    return shlex.split(options), file


def speculation_of(
    point: ServingPoint, engine: str, methods: Mapping[str, str], *, has_trees: bool = False
) -> Speculation | None:
    """Return the speculative decoding of a design, or None without speculation.

    Args:
        point: the design.
        engine: name of the engine, for messages.
        methods: the engine's names of the methods.
        has_trees: whether the engine supports trees of draft tokens.

    Raises:
        UserError: the engine has no option for the design, or the TOML file of the draft model
            names no repository.
    """
    asked = point.speculation
    if asked.method == NOTHING or asked.num_draft_tokens == 0:
        return None
    if asked.rule != FIXED:
        raise UserError(
            "no engine drafts by that rule: speculation.rule fixed, or speculation.disable_batch"
        )
    if asked.method not in methods:
        raise UserError(f"{engine} drafts by {', '.join(methods)}, not by {asked.method}")
    if asked.topk > 1 and not has_trees:
        raise UserError(f"{engine} exports no draft trees: speculation.topk 1, or sglang")
    model = HEAD if asked.method in HEADS else ""
    if asked.method == DRAFT:
        model = repository_of(load_model(asked.draft_model))
    return Speculation(methods[asked.method], model)


def adapter_slots(point: ServingPoint) -> int:
    """Return the number of adapters kept on a GPU, all of which a batch may use.

    Raises:
        UserError: no engine has the LoRA kernels of the design.
    """
    if point.lora.kernels == BY_TOKEN:
        raise UserError(
            f"lora.kernels {BY_TOKEN}: engines on offer multiply tokens of one adapter together"
        )
    return slots_of(point)


def repository_of(model: LanguageModel, workload: str = "") -> str:
    """Return the Hugging Face repository of a model, for chats that with a chat template.

    Raises:
        UserError: the model's `source` names no repository.
    """
    found = checkpoint_of(model, workload)
    if not found:
        raise UserError(
            f"the TOML file of '{model.name}' names no repository; write one into its `source`, as "
            'in "meta-llama/Llama-2-70b-hf config.json"'
        )
    return found


def _engines_of(scheduler: str) -> list[str]:
    """Return the engines that implement a scheduler, engines with this default first."""
    sheets = [load_engine(name) for name in ENGINES.names()]
    found = [sheet.name for sheet in sheets if scheduler in sheet.schedulers]
    found += [sheet.name for sheet in sheets if scheduler in sheet.optional_schedulers]
    if not found:
        known = dict.fromkeys(scheduler for sheet in sheets for scheduler in sheet.schedulers)
        raise UserError(
            f"no supported engine implements the scheduler '{scheduler}'; "
            f"sweep scheduler over {', '.join(known)}"
        )
    return found
