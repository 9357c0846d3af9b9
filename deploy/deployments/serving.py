"""Export serving designs as the command line of an engine or the manifest of an orchestrator.

The TOML file of an engine lists the documented options; every option is checked against the list.
Designs that no engine can run are refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from deploy.launch import HEAD, HEADS, EngineCommand, repository_of, script
from deploy.quoting import comment
from simulators.catalog.cluster import cluster_for
from simulators.catalog.engine import ServingEngine, load_engine
from simulators.catalog.gpu import GPU_SCALES, load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.replica import NOTHING
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.fields import point_from
from simulators.core.folder import ENGINES, Folder, is_dotted, load_from, load_module
from simulators.serving.deployment import deployment_of, pools_of
from simulators.serving.point import HOST, MTP, OVERLAPPED, ServingPoint
from simulators.serving.prices.batch_price import skips_layers
from simulators.serving.sharing import shares_gpu

ORCHESTRATORS = Folder("orchestrator", "orchestrators", ".py", package="deploy")
OPTIONS = Folder("serving engine", "engines", ".py", package="deploy")
"""Folder with a module per engine, next to the TOML files of `ENGINES`."""

Options = Callable[[ServingPoint, LanguageModel], tuple[list[str], str]]


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


DEPLOYMENTS = ServingDeployments()


def deployment(point: ServingPoint, target: str = "", name: str = "") -> str:
    """Return the text that deploys a design on a target, or on the engine its scheduler models."""
    known = (*ENGINES.names(), *ORCHESTRATORS.names())
    if target.isidentifier() and target not in known:
        raise UnknownNameError("target", target, known)
    orchestrator: Any = None
    if is_dotted(target) or target.endswith(".py") or target in ORCHESTRATORS.names():
        module = load_module(ORCHESTRATORS, target)
        orchestrator = module if hasattr(module, "manifest") else None
    if point.pools.prefill_gpus and hasattr(orchestrator, "pools"):
        parts = [(launch_of(pool, engine_of(point)), pool) for pool in pools_of(point)]
        return _title(parts, name) + str(orchestrator.pools(parts, point))
    launch = launch_of(point, target if target and not orchestrator else engine_of(point))
    manifest = orchestrator.manifest if orchestrator else script
    return _title([(launch, point)], name) + str(manifest(launch, point))


def _title(parts: Sequence[tuple[EngineCommand, ServingPoint]], name: str) -> str:
    """Return the leading comments: the design, and settings without an option."""
    on = [f"on {p.gpu}, {p.replicas} replica(s) of {launch.gpus} GPU(s)" for launch, p in parts]
    title = f"{name or 'design'}: {parts[0][1].model} {' for prefill; '.join(on)}"
    title += " for decode" if len(parts) > 1 else ""
    remarks = [remark for launch, point in parts for remark in _remarks(point, launch.engine)]
    return "".join(map(comment, dict.fromkeys([title, *remarks])))


def engine_of(point: ServingPoint) -> str:
    """Return the engine that implements the design's scheduler.

    Raises:
        UserError: no engine does.
    """
    return _engines_of(point.scheduler)[0]


def launch_of(point: ServingPoint, engine: str) -> EngineCommand:
    """Return the command of one replica on an engine, given by name, path or dotted module.

    Raises:
        UserError: the engine has no option for a feature of the design.
        Infeasible: the design cannot exist.
    """
    sheet, options = _engine(engine)
    if point.scheduler not in (*sheet.schedulers, *sheet.optional_schedulers):
        raise UserError(
            f"{sheet.name} does not implement the scheduler '{point.scheduler}'; engines that do: "
            f"{', '.join(_engines_of(point.scheduler))}"
        )
    deployment_of(point)  # raises where the design cannot exist
    for is_refused, why in _refusals(point):
        if is_refused:
            raise UserError(why)
    if point.cache.block_size not in sheet.block_sizes:
        raise UserError(
            f"{sheet.name} has no KV blocks of {point.cache.block_size} tokens; "
            f"it has {', '.join(map(str, sheet.block_sizes))}"
        )
    for what, known, precision in (
        ("weights", sheet.dtypes, point.dtype),
        ("a KV cache", sheet.kv_dtypes, point.kv_dtype),
    ):
        if precision not in known:
            raise UserError(
                f"{sheet.name} documents no {what} in {precision}; it has {', '.join(known)}"
            )
    model = load_model(point.model)
    written, file = options(point, model)
    words = (*sheet.dtypes[point.dtype], *written, *sheet.kv_dtypes[point.kv_dtype])
    undocumented = {word for word in words if word.startswith("--")} - {*sheet.options}
    assert not undocumented, f"{sheet.name} documents no option {undocumented}"
    gpus = point.tp * point.pp * point.attention_dp
    nodes = math.ceil(gpus / cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node)
    return EngineCommand(sheet, repository_of(model), words, nodes, gpus, file)


def _refusals(point: ServingPoint) -> Iterator[tuple[bool, str]]:
    """Yield conditions under which no engine can deploy the design, each with the message."""
    yield (
        point.scheduling.mixed_step == OVERLAPPED or point.cache.offload_to != HOST,
        f"no engine on offer has scheduling.mixed_step {OVERLAPPED}, or cache.offload_to other "
        f"than {HOST}",
    )
    yield (
        skips_layers(point),
        "no engine on offer skips layers for some tokens: dynamic.exit_depth, "
        "dynamic.mod_capacity and dynamic.prune_keep_ratio 1",
    )
    accelerator = point.accelerator
    yield accelerator != NOTHING, f"no engine runs on accelerator '{accelerator}', only on GPUs"
    scales = [n for n in (*GPU_SCALES, "colocation.time_share") if attrgetter(n)(point) != 1.0]
    yield bool(scales), f"a hypothetical device cannot be deployed: {', '.join(scales)} is not 1"
    yield (
        bool(point.pools.prefill_gpus),
        "pools.prefill_gpus, pools.decode_gpus: separate pools need a router and KV transfer, "
        "which no engine's command starts: --target dynamo, or llm_d",
    )
    yield (
        shares_gpu(point),
        "co-located models cannot be exported: start each model's engine by hand, under "
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for a share of the SMs",
    )


def _engine(name: str) -> tuple[ServingEngine, Options]:
    """Return an engine's TOML file, and the function that writes its options."""
    if is_dotted(name):
        name = str(Path(str(load_module(OPTIONS, name).__file__)).with_suffix(".toml"))
    module = f"{name.removesuffix('.toml')}.py" if name.endswith(".toml") else name
    return load_engine(name), load_from(OPTIONS, module, "options")


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


def _remarks(point: ServingPoint, engine: ServingEngine) -> Iterator[str]:
    """Yield comments about settings without an option: precision, host, clocks, heads."""
    runtime = deployment_of(point).hardware.replica.runtime
    if runtime.host:
        yield f"kernels are launched one by one; the host's time is that of {runtime.host}"
    if point.dtype not in ("fp16", "bf16") and not engine.dtypes[point.dtype]:
        yield f"the checkpoint sets the precision: use a {point.dtype} checkpoint"
    if point.dtype in engine.remarks:
        yield engine.remarks[point.dtype]
    if clock := point.power.clock_hz:
        yield f"on each node first: nvidia-smi --lock-gpu-clocks=0,{clock / 1e6:.0f}"
    if limit := point.power.limit_w:
        yield f"on each node first: nvidia-smi --power-limit={limit:.0f}"
    if point.speculation.num_draft_tokens and point.speculation.method in HEADS:
        yield f"replace {HEAD} by the repository of a draft head trained for the model"
    if point.speculation.num_draft_tokens and point.speculation.method == MTP:
        yield "mtp needs a checkpoint with an MTP head (num_nextn_predict_layers)"
