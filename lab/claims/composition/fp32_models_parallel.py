"""Training steps of whole fp32 models on four GPUs against measured ones, by how they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.composition._fp32_models import Evidence, evidence_of, peer_errors
from lab.claims.lines import absent, at_most
from lab.fits.graphs import Fitted
from lab.tables.graphs import TABLE, Case
from simulators.catalog.cluster import AUTO, cluster_for
from simulators.collectives.price import collective_time
from simulators.core.contract import Check
from simulators.graphs.timeline import price_graph
from simulators.workload.precision import BYTES

NEEDS = (TABLE,)
LIMITS = {"TP4": 8.0, "DP4": None, "PP4": None}


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield the mean error of each cut."""
    evidence = evidence_of(reference)
    for how, limit in LIMITS.items():
        cases = [c for c in evidence.cases if c.parallelism == how]
        if not cases:
            yield absent(f"composition/graphs: {how}, four GPUs", unit="%")
            continue
        errors = [np.mean(_parallel_s(evidence, c)) / c.total_s - 1.0 for c in cases]
        value = round(100.0 * float(np.mean(np.abs(errors))), 2)
        note = ", ".join([f"bias {100 * np.mean(errors):+.1f}", *peer_errors(cases)])
        yield at_most(f"composition/graphs: {how}, four GPUs", value, limit, len(cases), note)


def _parallel_s(evidence: Evidence, case: Case) -> list[float]:
    """Return the seconds of a training step on four GPUs, one for each level of information.

    Tensor ranks sum activations twice a layer either way, and once after the embedding. Data ranks
    sum gradients while the backward pass runs. A pipeline of one microbatch runs stage by stage.
    """
    cut, ranks = case.parallelism, case.gpus
    local = case.batch // ranks if cut == "DP4" else case.batch
    graph = case.graph(evidence.reference, batch=local, tp=ranks if cut == "TP4" else 1)
    framework = evidence.framework(case)
    cluster = cluster_for(AUTO, case.gpu)
    layers = max(node.repeat for node in graph.nodes)
    hidden = graph.nodes[-1].shape[-1] if cut == "DP4" else _hidden(case, evidence)
    stream_bytes = float(local * case.length * hidden * BYTES["fp32"])

    def message_s(kind: str, size_bytes: float) -> float:
        took = collective_time(kind, size_bytes, ranks=ranks, gpu=case.gpu, cluster=cluster)
        return float(took.time_s)

    found = []
    for level in evidence.levels(case.gpu):
        priced = price_graph(graph, case.gpu, dtype="fp32", training=True, level=level)
        spans = Fitted(case, priced).spans(framework)
        busy_s = sum(part.latency_s for part in spans.values())
        if cut == "TP4":
            busy_s += (4 * layers + 1) * message_s("all_reduce", stream_bytes)
        elif cut == "DP4":
            gradients_s = message_s("all_reduce", graph.parameters * BYTES["fp32"])
            busy_s += max(0.0, gradients_s - spans["backward"].latency_s)
        else:
            busy_s += 2 * (ranks - 1) * message_s("send_recv", stream_bytes)
        found.append(busy_s)
    return found


def _hidden(case: Case, evidence: Evidence) -> int:
    """Return the width of the residual stream."""
    first = next(n for n in case.graph(evidence.reference, batch=1).nodes if n.kind == "embedding")
    return first.shape[-1]
