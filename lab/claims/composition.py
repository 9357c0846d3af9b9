"""Claims about composition: passes and layers of language models, fp32 models, served energy.

fp32 models have framework constants fitted to all other graphs. Kernels of GPUs that play new ones
are known by ten rows per operator, in four draws, or by the data sheet alone, as NeuSight knew
them.

No kernel of ML.ENERGY's GPUs was metered: watts are by the formula of a GPU of their architecture.
Joules per token are watts over a rate, so they combine both errors. The figure "activity" takes the
measured rate: switching energy, which does not depend on time, and the power of clocks and leakage
for the measured time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.claim import Cells, columns, figures, predict
from lab.fits import forward_passes as fits
from lab.fits.deployments import run_cache_without
from lab.fits.methods import grouped, leave_one_out, quantile
from lab.fits.whole_models import factor_of, is_factored, judged_models
from lab.tables import fp32
from lab.tables.fp32 import GraphCase
from lab.tables.passes import TABLES, layer_rows
from lab.tables.published import ServedModel, served
from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.price import collective_time
from simulators.composition.adjustments import slowdown
from simulators.composition.replica import load_runtime
from simulators.evidence.intervals import COVERED
from simulators.evidence.lookup import BEST
from simulators.graphs.price import Framework
from simulators.kernels.energy import active_idle_w
from simulators.kernels.profile import Profile
from simulators.serving.simulator import simulate
from simulators.workload.precision import BYTES

RANGES, MOST_TOKENS = ("decode", "small prompts", "prompts"), (128, 512)
"""Ranges of a layer's tokens, and the most tokens of all but the last."""

DRAWS = 4
PEER = "neusight"
ALLOCATING = (("gpt2-large", 4), ("gpt3-xl-3072", 1))
"""Training rows of AMD GPUs that the data set itself names as slowed by their allocator."""

Levels = Callable[[str], list[tuple[str, str | Profile]]]
"""Function from a GPU to the names and profiles of the evidence about its kernels."""


def passes(reference: Path) -> Iterator[Cells]:
    """Yield predicted and measured seconds of whole passes, by table."""
    for table in TABLES:
        runtime = load_runtime(table.runtime)
        for case in table.cases(reference):
            yield {
                "predicted": case.predicted_s(runtime),
                "measured": case.measured_s,
                "held_out": case.is_test,
                "label": case.group,
                "table": table.name,
            }


def layers(reference: Path) -> Iterator[pl.DataFrame]:
    """Yield the sum of one layer's operators and measured layers, by range of tokens."""
    for one in layer_rows(reference):
        gpu = one.replica.gpu
        cells = {"gpu": gpu.name, "label": f"{one.model} tp{one.replica.layout.tp}"}
        times = {"predicted": one.predicted_s(slowdown(gpu)), "measured": one.measured_s}
        range_of = np.array(RANGES)[np.searchsorted(MOST_TOKENS, one.tokens)]
        yield columns(**times, range=range_of, held_out=one.is_test, **cells)


def intervals(reference: Path) -> Iterator[Cells]:
    """Yield configurations with intervals whose unexplained share is that of all other GPUs."""
    known = fits.configurations(reference)
    for gpu in dict.fromkeys(one.gpu for one in known):
        share = fits.shares([one for one in known if one.gpu != gpu])
        for one in known:
            if one.gpu == gpu and one.case.is_test and not isnan(share[one.is_known]):
                lo, hi = one.interval_s(share[one.is_known])
                cells = {"predicted": one.predicted_s, "measured": one.measured_s}
                yield {"gpu": gpu, "lo": lo, "hi": hi, **cells}


def _constants(reference: Path) -> tuple[Callable[[str], Framework], Levels]:
    """Return functions to the framework constants without a graph, and to the levels of a GPU."""
    measured = fp32.read_rows(reference)

    def levels(gpu: str) -> list[tuple[str, str | Profile]]:
        if gpu not in fits.CONFIG.new:
            return [("measured", BEST)]
        return [
            ("few rows", fits.few_shot_profile(load_gpu(gpu), measured, draw))
            for draw in range(DRAWS)
        ]

    framework = functools.partial(fits.fit_without, fits.priced_cases(reference))
    return functools.cache(framework), functools.cache(levels)


def one_gpu(reference: Path) -> pl.DataFrame:
    """Return fp32 models on one GPU, a row for each level of information and draw."""
    framework_without, levels_of = _constants(reference)
    rows: list[dict[str, Any]] = []
    for case in fp32.read_cases(reference):
        if case.parallelism != "none" or not case.has_graph:
            continue
        framework = framework_without(case.graph_name)
        levels = list(levels_of(case.gpu.name))
        if case.gpu.name in fits.CONFIG.new:
            levels.append(("data sheet", "zero_shot"))
        for number, (name, level) in enumerate(levels):
            fitted = fits.FittedGraph(case, case.price(reference, level))
            spans = fitted.spans(framework).values()
            rows.append(
                {
                    **_labels(case),
                    "level": name,
                    "peer": case.peers_s.get(PEER) if number == 0 or name == "data sheet" else None,
                    "is_allocating": fitted.is_allocating,
                    "is_slow": case.is_training and (case.model, case.batch) in ALLOCATING,
                    "predicted": sum(part.latency_s for part in spans),
                    "lo": sum(part.lo_s for part in spans),
                    "hi": sum(part.hi_s for part in spans),
                }
            )
    return pl.DataFrame(rows).with_columns(pl.col("lo", "hi").mean().over("row", "level"))


def _labels(case: GraphCase) -> dict[str, Any]:
    return {
        "row": f"{case.graph_name} {case.gpu.name} {case.parallelism}, {case.total_s:g} s",
        "gpu": case.gpu.name,
        "vendor": case.gpu.vendor,
        "is_fused": case.is_fused,
        "parallelism": case.parallelism,
        "label": case.graph_name,
        "measured": case.total_s,
        "peer": case.peers_s.get(PEER),
    }


def four_gpus(reference: Path) -> Iterator[Cells]:
    """Yield training steps on four GPUs under tensor, data or pipeline parallelism."""
    framework_without, levels_of = _constants(reference)
    for case in fp32.read_cases(reference):
        if case.parallelism != "none":
            framework = framework_without(case.graph_name)
            draws = list(_parallel_s(reference, framework, levels_of, case))
            yield {**_labels(case), "predicted": float(np.mean(draws))}


def _parallel_s(
    reference: Path, framework: Framework, levels_of: Levels, case: GraphCase
) -> Iterator[float]:
    """Yield the seconds of a training step on four GPUs for each draw.

    Tensor parallel ranks sum activations twice a layer in each direction, and once after the
    embedding. Data parallel ranks sum gradients during the backward pass. A pipeline of one
    micro-batch runs stage by stage.
    """
    kind, ranks = case.parallelism, case.gpus
    local = case.batch // ranks if kind == "DP4" else case.batch
    graph = case.graph(reference, batch=local, tp=ranks if kind == "TP4" else 1)
    cluster = cluster_for(AUTO, case.gpu)
    count = max(node.repeat for node in graph.nodes)
    embedding = next(n for n in case.graph(reference, batch=1).nodes if n.kind == "embedding")
    hidden = graph.nodes[-1].shape[-1] if kind == "DP4" else embedding.shape[-1]
    stream_bytes = float(local * case.length * hidden * BYTES["fp32"])

    def message_s(collective: str, size_bytes: float) -> float:
        took = collective_time(collective, size_bytes, ranks=ranks, gpu=case.gpu, cluster=cluster)
        return float(took.time_s)

    for _, level in levels_of(case.gpu.name):
        priced = fp32.price_graph(graph, case.gpu, dtype="fp32", training=True, level=level)
        spans = fits.FittedGraph(case, priced).spans(framework)
        busy_s = sum(part.latency_s for part in spans.values())
        if kind == "TP4":
            yield busy_s + (4 * count + 1) * message_s("all_reduce", stream_bytes)
        elif kind == "DP4":
            gradients_s = message_s("all_reduce", graph.parameters * BYTES["fp32"])
            yield busy_s + max(0.0, gradients_s - spans["backward"].latency_s)
        else:
            yield busy_s + 2 * (ranks - 1) * message_s("send_recv", stream_bytes)


def convolutional_networks(reference: Path) -> Iterator[Cells]:
    """Yield sums of kernels of profiled networks that set no depthwise time."""
    profiles = fp32.read_profiles(reference)
    framework = Framework(pace=fp32.depthwise_paces(profiles))
    for p in profiles:
        if p.name != fp32.FITTED:
            times = {"predicted": p.predicted_s(framework), "measured": p.measured_s}
            yield {**times, "label": p.name}


def whole_models(reference: Path) -> Iterator[Cells]:
    """Yield published times of whole models; factor and interval are of all other models."""
    for key, rows in grouped(judged_models(reference), lambda row: row.key).items():
        group, phase, bits, is_eager = key
        cells = {"group": group, "phase": phase, "bits": bits}
        for inside, others in leave_one_out(rows, lambda row: row.model, list):
            factor = factor_of(others) if is_factored(rows) else 1.0
            ratios = [row.ratio / factor for row in others] or [nan]
            lo, hi = quantile(ratios, COVERED)
            for row in inside:
                predicted_s = factor * row.predicted_s
                yield {
                    **cells,
                    "runtime": "eager" if is_eager else "compiled",
                    "predicted": predicted_s,
                    "measured": row.measured_s,
                    "lo": lo * predicted_s,
                    "hi": hi * predicted_s,
                    "label": f"{row.model} {row.gpu}",
                    "row": row.model,
                }


def energy(reference: Path) -> Iterator[Cells]:
    """Yield watts of all GPUs and joules per output token of every model that ML.ENERGY served."""
    known, unknown = served(reference)
    cache_of = functools.cache(run_cache_without)

    def answer(row: ServedModel) -> list[Cells]:
        gpus = row.point.tp * row.point.attention_dp * row.point.replicas
        metrics = simulate(row.point, cache_of(row.point.runtime, row.group))
        token_j = metrics.energy_j_per_token
        assert token_j is not None
        longer_s = 1.0 / row.tokens_per_s - 1.0 / metrics.tokens_per_s
        active_j = token_j + gpus * active_idle_w(load_gpu(row.point.gpu)) * longer_s
        pairs = {
            "watts": (token_j * metrics.tokens_per_s, row.watts * gpus),
            "joules": (token_j, row.token_j),
            "activity": (active_j, row.token_j),
        }
        return figures("figure", pairs, is_dense=row.is_dense)

    yield from ({"skipped": why} for why in unknown)
    yield from predict(known, answer)
