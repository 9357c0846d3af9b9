"""Which models fit on a GPU and how fast they are; and what predictions for a design rest on.

Speeds are steady states of one and of eight users whose prompts have 2,048 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import Gpu, load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.composition.engine_defaults import checkpoint_dtypes, is_supported
from simulators.composition.explain import explained
from simulators.composition.price import PROBE
from simulators.core.columns import LEVELS, batch_of
from simulators.core.contract import Contribution
from simulators.core.errors import Infeasible, UserError
from simulators.core.folder import MODELS
from simulators.serving.deployment import deployment_of
from simulators.serving.options import ANALYTIC, CLOSED
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate
from simulators.workload.llm.step import prefill_step

USERS = (1, 8)
PROMPTS = (2048, 32_768)
ANSWER = 256
"""Output tokens of a request."""
LEAST_BYTES = 0.5
"""Bytes of a weight in the smallest precision tried."""
DEGREES = (1, 2, 4, 8, 16)
"""Tensor parallel degrees."""
CHATS = 30
"""Requests of the chat whose intervals are stated."""
INTERVALS = ("ttft_mean_s", "tpot_mean_s")
QUANTIZED = ("fp8", "w4a16")
"""Precisions tried beside that of the maker's checkpoint: published for most models."""


@dataclass(frozen=True)
class FittingModel:
    """A model in a precision that fits on the GPUs, with its speeds; None where a load does not."""

    model: str
    parameters: int
    dtype: str
    tp: int
    pp: int
    context: int  # tokens of one sequence: the KV cache, at most the model's limit
    tokens_per_s: tuple[float, ...]  # of all users, by number of users
    ttft_s: tuple[float | None, ...]  # of one user, by length of the prompt
    known: float  # share of the time from kernels measured or fitted on this GPU


def models_that_fit(gpu: str, gpus: int, engine: str, word: str) -> list[FittingModel]:
    """Return the models whose name contains a word, in each precision that fits; largest first.

    The GPUs are one replica, by tensor parallelism, or by pipeline stages if heads do not divide.

    Raises:
        UserError: the engine does not run on the GPU, or nothing fits.
    """
    sheet, runner = load_gpu(gpu), load_engine(engine)
    if sheet.vendor not in runner.vendors:
        raise UserError(f"{runner.label} does not run on {sheet.vendor.upper()} devices")
    known_models = map(load_model, MODELS.like(word))
    models = [m for m in known_models if m.parameters * LEAST_BYTES < gpus * sheet.hbm_bytes]
    known = {"gpu": sheet.name, "scheduler": runner.schedulers[0], "max_batch": max(USERS)}
    cuts = dict.fromkeys([(gpus, 1), (1, gpus)])
    tried = [
        (model, {**known, "model": model.name, "dtype": dtype, "tp": tp, "pp": pp})
        for model in models
        for dtype in _dtypes(model.name, sheet)
        for tp, pp in cuts
    ]
    loads = [(users, PROMPTS[0]) for users in USERS] + [(1, prompt) for prompt in PROMPTS[1:]]
    points = [{**design, **_load(*load)} for _, design in tried for load in loads]
    rows = SIMULATOR.evaluate(batch_of(ServingPoint, *points)).to_pylist() if points else []
    found: dict[tuple[str, str], FittingModel] = {}
    for i, (model, design) in enumerate(tried):
        own = rows[i * len(loads) : (i + 1) * len(loads)]
        if _fits(own[0]):
            one = _fitting(model, design, own)
            found.setdefault((one.model, one.dtype), one)
    if not found:
        what = f"no model like '{word}'" if word else "no model"
        raise UserError(f"{what} fits on {gpus} {sheet.name}")
    return sorted(found.values(), key=lambda one: (-one.parameters, one.model))


def _dtypes(model: str, gpu: Gpu) -> list[str]:
    own = checkpoint_dtypes(model, gpu.name)
    quantized = (name for name in QUANTIZED if is_supported(gpu.peak_flops, name))
    return list(dict.fromkeys((*own, *quantized)))


def _load(users: int, prompt: int) -> dict[str, Any]:
    lengths = {"prompt_tokens": prompt, "output_tokens": ANSWER, "requests": users}
    closed = {"arrivals.process": CLOSED, "arrivals.clients": users, "qps": None}
    return {**lengths, **closed, "fidelity": ANALYTIC, "cache.block_size": 16}


def _fits(row: Mapping[str, Any]) -> bool:
    rate = row["requests_per_s"]
    return rate is not None and math.isfinite(rate) and rate > 0.0


def _fitting(
    model: LanguageModel, design: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> FittingModel:
    one = (rows[0], *rows[len(USERS) :])
    return FittingModel(
        model=model.name,
        parameters=model.parameters,
        dtype=design["dtype"],
        tp=design["tp"],
        pp=design["pp"],
        context=min(model.max_context, 16 * rows[0]["kv_blocks"]),
        tokens_per_s=tuple(row["tokens_per_s"] for row in rows[: len(USERS)]),
        ttft_s=tuple(row["ttft_mean_s"] if _fits(row) else None for row in one),
        known=(rows[0]["measured_share"] or 0.0) + (rows[0]["fitted_share"] or 0.0),
    )


@dataclass(frozen=True)
class Support:
    """What the prediction of a model on a GPU by an engine rests on."""

    names: tuple[str, str, str]  # of model, GPU and engine in the catalog
    gpus: int  # of the smallest replica that holds the model
    dtype: str
    operators: Mapping[str, Mapping[str, tuple[float, Sequence[str]]]]
    """By phase and evidence level: share of the time, and operators, longest first."""
    intervals: Mapping[str, tuple[float, float]]
    """By metric: ends of the 90 % interval over the prediction, for a chat of one user."""


def support_of(model: str, gpu: str, engine: str) -> Support:
    """Return what predictions rest on, for the smallest tensor-parallel replica.

    Raises:
        UserError: the engine does not run on the GPU, or 16 GPUs do not hold the model.
    """
    sheet, runner, m = load_gpu(gpu), load_engine(engine), load_model(model)
    if sheet.vendor not in runner.vendors:
        raise UserError(f"{runner.label} does not run on {sheet.vendor.upper()} devices")
    for tp in DEGREES:
        point = ServingPoint(
            model=m.name, gpu=sheet.name, scheduler=runner.schedulers[0], tp=tp, requests=CHATS
        )
        try:
            metrics = vars(simulate(point))
            break
        except Infeasible as verdict:
            refused = verdict
    else:
        raise UserError(f"{m.name} does not run on {DEGREES[-1]} {sheet.name}: {refused}")
    replica = deployment_of(point).hardware.replica
    steps = {"prefill": prefill_step(1.0, float(PROMPTS[0])), "decode": PROBE}
    return Support(
        names=(m.name, sheet.name, runner.name),
        gpus=point.tp,
        dtype=point.dtype,
        operators={n: _by_level(explained(replica, step, n, 0.0)) for n, step in steps.items()},
        intervals={n: _ends(metrics, n) for n in INTERVALS if metrics[f"{n}_lo"]},
    )


def _ends(metrics: Mapping[str, Any], name: str) -> tuple[float, float]:
    low, high = (metrics[f"{name}_{end}"] / metrics[name] for end in ("lo", "hi"))
    return low, high


def _by_level(found: Sequence[Contribution]) -> dict[str, tuple[float, list[str]]]:
    timed = sorted((c for c in found if c.time_s), key=lambda c: -c.time_s)
    whole_s = sum(c.time_s for c in timed)
    levels = {n: [c for c in timed if c.level == n] for n in LEVELS}
    return {
        level: (sum(c.time_s for c in own) / whole_s, list(dict.fromkeys(c.name for c in own)))
        for level, own in levels.items()
        if own
    }
