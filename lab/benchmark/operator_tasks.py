"""Tasks of operators and whole models: kernels, layers, fp32 models, collectives, edge devices.

Where no fit may have seen a row, the predictions are those of the fits' own hold-out rules: shapes
of kernels and layers by their hashes, sizes of collectives, graphs of models, and chips of which
ten models are measured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from lab.benchmark.protocol import ALL, GPU, Answer, BenchmarkSubject
from lab.claims.edge import programs
from lab.claims.kernels import shipped_price
from lab.fits.collectives import held_out_errors
from lab.fits.forward_passes import FittedGraph
from lab.tables.collectives import Curves, read_libraries
from lab.tables.fp32 import GraphCase, read_cases, read_rows
from lab.tables.kernels import ENGINE, read_chain_rows, read_layer_products
from lab.tables.records import is_gpu
from lab.tables.rows import Rows
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.measured import NETWORKS
from simulators.evidence.default_rates import identity_of
from simulators.graphs.launches import forward_launches
from simulators.graphs.price import load_framework
from simulators.kernels.levels import profile_of, zero_shot_profile
from simulators.kernels.price import Priced, price_call, roofline_s

DRAWN = (0.5, 0.52)
"""Buckets of held-out fp32 shapes among which the protocol draws."""

EDGE_DRAW = 0
"""Which draw of ten measured models is asked for on each chip."""


def kernels(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield fp32 calls of shapes that the fits of this project hold out."""
    low, high = DRAWN
    for rows in read_rows(reference):
        some = rows.where(rows.held_out & (rows.bucket >= low) & (rows.bucket < high))
        if len(some):
            yield from _calls(some, functools.partial(_call_price, some))


def _call_price(rows: Rows, split: str) -> Priced:
    gpu = load_gpu(rows.gpu)
    level = zero_shot_profile(identity_of(gpu)) if split == GPU else profile_of(gpu)
    return price_call(rows.operator, gpu, level)


def layers(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield products and pointwise chains of layers whose shapes the fits hold out."""
    for gpu in ENGINE.gpus:
        for rows in (*read_layer_products(reference, gpu), *read_chain_rows(reference, gpu)):
            some = rows.where(rows.held_out)
            if len(some):
                yield from _calls(some, functools.partial(_layer_price, some))


def _layer_price(rows: Rows, _split: str) -> Priced:
    return shipped_price(rows)


def _calls(rows: Rows, price: Callable[[str], Priced]) -> Iterator[BenchmarkSubject]:
    bound_s = np.broadcast_to(roofline_s(rows.operator, load_gpu(rows.gpu)), len(rows))
    price = functools.cache(price)

    def answer(at: int, split: str) -> Mapping[str, Answer]:
        found = price(split if split == GPU else ALL)
        parts = (found.latency_s, found.lo_s, found.hi_s)
        mean, low, high = (float(np.broadcast_to(part, len(rows))[at]) for part in parts)
        return {"latency_s": (mean, low, high)}

    for at in range(len(rows)):
        sizes = {name: float(column[at]) for name, column in rows.sizes.items()}
        shape = " ".join(f"{name}={value:g}" for name, value in sizes.items())
        yield BenchmarkSubject(
            row=f"{rows.gpu} {rows.kernel} {rows.dtype} {shape}",
            gpu=rows.gpu,
            model=rows.kernel,
            measured={"latency_s": float(rows.seconds[at])},
            sizes=tuple(sizes.values()),
            lower_bound={"latency_s": float(bound_s[at])},
            answer=functools.partial(answer, at),
        )


def models(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield passes and training steps of fp32 transformers; answers are for one GPU alone."""
    for case in read_cases(reference):
        kind = "training" if case.is_training else "inference"
        row = f"{case.gpu.name} {case.graph_name} {case.parallelism} fused={case.is_fused}"
        yield BenchmarkSubject(
            row=row,
            gpu=case.gpu.name,
            model=case.model,
            measured={"latency_s": case.total_s},
            sizes=(float(case.batch), float(case.length), float(case.gpus)),
            kinds=(kind, str(case.is_fused), case.parallelism),
            lower_bound=_graph_bound(reference, case),
            peers={name: {"latency_s": seconds} for name, seconds in case.peers_s.items()},
            answer=functools.partial(_graph_answer, reference, case),
        )


def _graph_bound(reference: Path, case: GraphCase) -> Mapping[str, float]:
    if case.parallelism != "none" or not case.has_graph:
        return {}
    launches = forward_launches(case.graph(reference), "fp32", training=False, fused=case.is_fused)
    each_s = (float(np.sum(roofline_s(one.kernel, case.gpu))) * one.repeat for one in launches)
    return {"latency_s": sum(each_s) * (3.0 if case.is_training else 1.0)}


def _graph_answer(reference: Path, case: GraphCase, split: str) -> Mapping[str, Answer]:
    if case.parallelism != "none" or not case.has_graph:
        return {}
    level = zero_shot_profile(identity_of(case.gpu)) if split == GPU else profile_of(case.gpu)
    spans = FittedGraph(case, case.price(reference, level)).spans(load_framework()).values()
    mean = sum(part.latency_s for part in spans)
    ends = sum(part.lo_s for part in spans), sum(part.hi_s for part in spans)
    return {"latency_s": (mean, *ends)}


MOVED = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "alltoall": 1.0}
"""Times that `(n - 1) / n` of the buffer leaves a rank."""


def collectives(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield collectives of sizes that the fits hold out, on GPUs with a measured network."""
    for gpu, libraries in read_libraries(reference).items():
        if NETWORKS.has(gpu) and is_gpu(gpu):
            for library, curves in libraries.items():
                yield from _messages(gpu, library, curves)


def _messages(gpu: str, library: str, curves: Curves) -> Iterator[BenchmarkSubject]:
    held, errors = held_out_errors(curves)
    sheet = load_gpu(gpu)
    cluster = cluster_for("auto", sheet)
    for curve, octave, log_s, error in zip(
        held.curve, held.octave, held.log_s, errors, strict=True
    ):
        collective, dtype, ranks = held.keys[int(curve)]
        size = 2.0 ** float(octave)
        moved = MOVED.get(collective, 1.0) * (ranks - 1) / ranks * size
        predicted = math.exp(float(log_s + error))
        answer: Mapping[str, Answer] = {"latency_s": (predicted, None, None)}
        yield BenchmarkSubject(
            row=f"{gpu} {library} {collective} {dtype} {ranks} {size:.0f}",
            gpu=gpu,
            model=collective,
            measured={"latency_s": math.exp(float(log_s))},
            sizes=(size, float(ranks)),
            kinds=(library, dtype),
            lower_bound={"latency_s": moved / cluster.link(ranks, sheet).bytes_per_s},
            answer=functools.partial(_stored, answer, has_gpu=False),
        )


def _stored(
    answer: Mapping[str, Answer], split: str, *, has_gpu: bool = True
) -> Mapping[str, Answer]:
    """Return an answer that holds for all splits; none for unseen GPUs unless `has_gpu`."""
    return answer if has_gpu or split != GPU else {}


def edge(reference: Path) -> Iterator[BenchmarkSubject]:
    """Yield programs on chips of which ten models are measured; the chip is left out of the fit."""
    for frame in programs(reference, draws=(EDGE_DRAW,)):
        for one in frame.iter_rows(named=True):
            model, _, precision, runtime = one["program"].split("|")
            answer: Mapping[str, Answer]
            answer = {"latency_s": (one["predicted"], one["lo"], one["hi"])}
            yield BenchmarkSubject(
                row=f"{one['chip']} {one['program']}",
                gpu=one["chip"],
                model=model,
                measured={"latency_s": one["measured"]},
                sizes=(1.0,),
                kinds=(one["program"], precision, runtime),
                answer=functools.partial(_stored, answer),
            )


READERS: Mapping[str, Callable[[Path], Iterable[BenchmarkSubject]]] = {
    "kernels": kernels,
    "layers": layers,
    "models": models,
    "collectives": collectives,
    "edge": edge,
}
