"""Forward passes and layers of language models beside measured ones, and their intervals."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.claims.predictions import columns, predict, together
from lab.fits.deployments import run_cache_without
from lab.fits.forward_passes import (
    NEW,
    FittedGraph,
    configurations,
    few_shot_profile,
    fit_without,
    priced_cases,
    shares,
)
from lab.tables.fp32 import (
    FITTED,
    GraphCase,
    depthwise_paces,
    price_graph,
    read_cases,
    read_profiles,
    read_rows,
)
from lab.tables.passes import LAYER_GPUS, TABLES, LayerRows, layer_rows
from lab.tables.published import ServedModel, served
from simulators.catalog.cluster import AUTO, cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.collectives.price import collective_time
from simulators.composition.adjustments import slowdown
from simulators.composition.replica import load_runtime
from simulators.core.jit import Floats
from simulators.evidence.lookup import BEST
from simulators.graphs.price import Framework
from simulators.kernels.energy import active_idle_w
from simulators.kernels.profile import Profile
from simulators.serving.simulator import simulate
from simulators.workload.precision import BYTES

RANGES = {"decode": (1, 128), "small prompts": (129, 512), "prompts": (513, 1 << 20)}
"""Fewest and most tokens of a layer."""


def passes(reference: Path) -> pl.DataFrame:
    """Return predicted and measured seconds of whole passes, by table."""
    return together(
        columns(
            predicted=np.array([case.predicted_s(runtime) for case in cases]),
            measured=np.array([case.measured_s for case in cases]),
            held_out=np.array([case.is_test for case in cases]),
            label=[case.group for case in cases],
            table=table.name,
        )
        for table in TABLES
        for runtime in [load_runtime(table.runtime)]
        for cases in [list(table.cases(reference))]
    )


def layers(reference: Path) -> pl.DataFrame:
    """Return sums of one layer's operators beside measured layers, by range of tokens."""
    return together(
        _layer_rows(one, one.predicted_s(slowdown(one.replica.gpu)), range=name).filter(
            pl.col("tokens").is_between(low, high)
        )
        for name, (low, high) in RANGES.items()
        for gpu in LAYER_GPUS.values()
        for one in layer_rows(reference)
        if one.replica.gpu.name == gpu
    )


def _layer_rows(one: LayerRows, predicted_s: Floats, **labels: object) -> pl.DataFrame:
    return columns(
        predicted=predicted_s,
        measured=one.measured_s,
        tokens=one.tokens,
        gpu=one.replica.gpu.name,
        held_out=one.is_test,
        label=f"{one.model} tp{one.replica.layout.tp}",
        **labels,
    )


def intervals(reference: Path) -> pl.DataFrame:
    """Return configurations with intervals whose unexplained share is of all other GPUs."""
    known = configurations(reference)
    rows = []
    for gpu in dict.fromkeys(one.gpu for one in known):
        share = shares([one for one in known if one.gpu != gpu])
        for one in known:
            if one.gpu == gpu and one.case.is_test and not isnan(share[one.is_known]):
                lo, hi = one.interval_s(share[one.is_known])
                cells = {"predicted": one.predicted_s, "measured": one.measured_s}
                rows.append({"gpu": gpu, "lo": lo, "hi": hi, **cells})
    return pl.DataFrame(rows)


DRAWS = 4
PEER = "neusight"
ALLOCATING = (("gpt2-large", 4), ("gpt3-xl-3072", 1))
"""Training rows of AMD GPUs that the data set itself names as slowed by their allocator."""

Level = tuple[str, str | Profile]
"""What is known of a GPU's kernels: its name, and the level or profile."""


class _Constants:
    """Framework constants without a graph, and what is known of each GPU's kernels."""

    def __init__(self, reference: Path) -> None:
        rows = priced_cases(reference)
        self.framework = functools.cache(functools.partial(fit_without, rows))
        self._rows = read_rows(reference)[0]
        self.levels = functools.cache(self._levels)

    def _levels(self, gpu: str) -> list[Level]:
        if gpu not in NEW:
            return [("measured", BEST)]
        draws = range(DRAWS)
        return [("few rows", few_shot_profile(load_gpu(gpu), self._rows, seed)) for seed in draws]


def one_gpu(reference: Path) -> pl.DataFrame:
    """Return a row for each model on one GPU and each level of information or draw."""
    constants = _Constants(reference)
    rows: list[dict[str, Any]] = []
    for case in read_cases(reference):
        if case.parallelism != "none" or not case.has_graph:
            continue
        framework = constants.framework(case.graph_name)
        levels = list(constants.levels(case.gpu.name))
        if case.gpu.name in NEW:
            levels.append(("data sheet", "zero_shot"))
        for number, (name, level) in enumerate(levels):
            fitted = FittedGraph(case, case.price(reference, level))
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
        "row": id(case),
        "gpu": case.gpu.name,
        "vendor": case.gpu.vendor,
        "is_fused": case.is_fused,
        "parallelism": case.parallelism,
        "label": case.graph_name,
        "measured": case.total_s,
        "peer": case.peers_s.get(PEER),
    }


def four_gpus(reference: Path) -> pl.DataFrame:
    """Return training steps on four GPUs, cut by tensor, data or pipeline parallelism."""
    constants = _Constants(reference)
    return pl.DataFrame(
        [
            {
                **_labels(case),
                "predicted": float(np.mean(list(_parallel_s(reference, constants, case)))),
            }
            for case in read_cases(reference)
            if case.parallelism != "none"
        ]
    )


def _parallel_s(reference: Path, constants: _Constants, case: GraphCase) -> Iterator[float]:
    """Yield the seconds of a training step on four GPUs for each draw.

    Tensor parallel ranks sum activations twice a layer either way, and once after the embedding.
    Data parallel ranks sum gradients while the backward pass runs. A pipeline of one micro-batch
    runs stage by stage.
    """
    layout, ranks = case.parallelism, case.gpus
    local = case.batch // ranks if layout == "DP4" else case.batch
    graph = case.graph(reference, batch=local, tp=ranks if layout == "TP4" else 1)
    framework = constants.framework(case.graph_name)
    cluster = cluster_for(AUTO, case.gpu)
    layers = max(node.repeat for node in graph.nodes)
    embedding = next(n for n in case.graph(reference, batch=1).nodes if n.kind == "embedding")
    hidden = graph.nodes[-1].shape[-1] if layout == "DP4" else embedding.shape[-1]
    stream_bytes = float(local * case.length * hidden * BYTES["fp32"])

    def message_s(kind: str, size_bytes: float) -> float:
        took = collective_time(kind, size_bytes, ranks=ranks, gpu=case.gpu, cluster=cluster)
        return float(took.time_s)

    for _, level in constants.levels(case.gpu.name):
        priced = price_graph(graph, case.gpu, dtype="fp32", training=True, level=level)
        spans = FittedGraph(case, priced).spans(framework)
        busy_s = sum(part.latency_s for part in spans.values())
        if layout == "TP4":
            yield busy_s + (4 * layers + 1) * message_s("all_reduce", stream_bytes)
        elif layout == "DP4":
            gradients_s = message_s("all_reduce", graph.parameters * BYTES["fp32"])
            yield busy_s + max(0.0, gradients_s - spans["backward"].latency_s)
        else:
            yield busy_s + 2 * (ranks - 1) * message_s("send_recv", stream_bytes)


def convolutional_networks(reference: Path) -> pl.DataFrame:
    """Return sums of kernels of profiled networks, but for the one that sets depthwise pace."""
    profiles = read_profiles(reference)
    framework = Framework(pace=depthwise_paces(profiles))
    return pl.DataFrame(
        [
            {"label": p.name, "predicted": p.predicted_s(framework), "measured": p.measured_s}
            for p in profiles
            if p.name != FITTED
        ]
    )


def energy(reference: Path) -> pl.DataFrame:
    """Return watts of all GPUs, and joules per token, of every served model."""
    known, unknown = served(reference)
    cache_of = functools.cache(run_cache_without)

    def answer(row: ServedModel) -> list[dict[str, Any]]:
        gpus = row.point.tp * row.point.attention_dp * row.point.replicas
        metrics = simulate(row.point, cache_of(row.point.runtime, row.group))
        token_j = metrics.energy_j_per_token
        assert token_j is not None
        longer_s = 1.0 / row.tokens_per_s - 1.0 / metrics.tokens_per_s
        figures = {
            "watts": (token_j * metrics.tokens_per_s, row.watts * gpus),
            "joules": (token_j, row.token_j),
            "activity": (
                token_j + gpus * active_idle_w(load_gpu(row.point.gpu)) * longer_s,
                row.token_j,
            ),
        }
        is_dense = load_model(row.point.model).experts == 0
        return [
            {"figure": figure, "is_dense": is_dense, "predicted": ours, "measured": theirs}
            for figure, (ours, theirs) in figures.items()
        ]

    skipped = [{"skipped": why} for why in Counter(unknown).elements()]
    return pl.concat([predict(known, answer), pl.DataFrame(skipped)], how="diagonal_relaxed")
