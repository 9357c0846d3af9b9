"""A data-parallel step from the operators of one GPU: it was not measured, but it has bounds.

Compute is the sum of the operators. The exposed all-reduce of gradients takes at most as long as
all of them in one message.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from lab.stages.traced import Cut, traced_step
from lab.tables.training.operator_trace import GPU, gradient_bytes, read_trace
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.price import collective_time


def bounds(reference: Path, network: str, replicas: int) -> pl.DataFrame:
    """Return compute beside the sum of operators, and exposed beside all gradients, in seconds."""
    trace, gpu = read_trace(reference, network), load_gpu(GPU)
    cluster = cluster_for("auto", gpu)
    step = traced_step(trace, Cut(dp=replicas), gpu=gpu, cluster=cluster)
    message = collective_time(
        "all_reduce", gradient_bytes(trace), ranks=replicas, gpu=gpu, cluster=cluster, dtype="fp32"
    )
    whole_s = float(message.time_s)
    rows = {
        "part": ["compute", "gradients"],
        "predicted": [step.compute_s, step.exposed_s],
        "measured": [sum(one.seconds for one in trace), whole_s],
    }
    return pl.DataFrame(rows).with_columns(share=pl.col("predicted") / pl.col("measured"))
