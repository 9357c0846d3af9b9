"""A step of eight replicas from the operators of one GPU: nobody measured it, but it has bounds.

Compute is the sum of the operators to the last digit. What shows of the gradients is at least the
sum of the last bucket, and at most the sum of all of them in one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.claims.lines import absent, at_most
from lab.stages.traced import Cut, traced_step
from lab.tables.training.operator_trace import GPU, TRACE, gradient_bytes, read_trace
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.collectives.price import collective_time
from simulators.core.contract import Check

NEEDS = (TRACE,)
NETWORK, REPLICAS = "resnet50", 8


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield how far compute is off the sum of operators, and what shows over what it may."""
    trace = read_trace(reference, NETWORK)
    if not trace:
        yield absent("operator trace", unit="%")
        return
    gpu = load_gpu(GPU)
    cluster = cluster_for("auto", gpu)
    step = traced_step(trace, Cut(dp=REPLICAS), gpu=gpu, cluster=cluster)
    operators_s = sum(one.seconds for one in trace)
    off = 100.0 * abs(step.compute_s / operators_s - 1.0)
    name = f"operator trace, {NETWORK} on {REPLICAS} {GPU}"
    yield at_most(f"{name}: compute off the sum of operators", off, 1e-6, len(trace))
    whole_s = float(
        collective_time(
            "all_reduce",
            gradient_bytes(trace),
            ranks=REPLICAS,
            gpu=gpu,
            cluster=cluster,
            dtype="fp32",
        ).time_s
    )
    note = (
        f"step {1e3 * step.step_s:.2f} ms, operators {1e3 * operators_s:.2f} ms, gradients "
        f"alone {1e3 * whole_s:.2f} ms"
    )
    share = 100.0 * step.exposed_s / whole_s
    yield at_most(f"{name}: gradients that show, of their sum", share, 100.0, 1, note)
