"""A pass over a graph as an operator graph: what is computed when, and what is sent meanwhile.

The schema is that of `collectives/trace.py`, so a step can be written for other tools, or replayed
on links and ranks that the composition does not know. Repetitions of a layer are one operator.
"""

from __future__ import annotations

from simulators.collectives.traces.operators import Operator
from simulators.composition.graphs import slowdown
from simulators.composition.graphs_kernels import BACKWARD, OPTIMIZER
from simulators.composition.graphs_pass import Job, Pass
from simulators.workload.operators import BYTES

NS = 1e9


def operators_of(job: Job, one: Pass) -> tuple[Operator, ...]:
    """Return the operators of one rank: kernels in their order, and the sum of all gradients.

    The sum waits for the backward pass and the optimiser waits for the sum.
    """
    seconds = one.priced.seconds * slowdown(one.priced, job.gpu, job.framework)
    found: list[Operator] = []
    for launch, each in zip(one.priced.launches, seconds.tolist(), strict=True):
        if launch.phase == OPTIMIZER and job.replicas > 1:
            found.append(_sum(job, after=len(found) - 1))
        after = (len(found) - 1,) if found else ()
        name = launch.node + (".gradient" if launch.phase == BACKWARD else "")
        found.append(
            Operator(
                id=len(found), name=name, kind="compute", after=after, duration_ns=round(each * NS)
            )
        )
    return tuple(found)


def _sum(job: Job, after: int) -> Operator:
    size = job.graph.parameters * BYTES[job.dtype]
    return Operator(
        id=after + 1, name="gradients", kind="collective", after=(after,), collective="all_reduce",
        size_bytes=round(size),
    )  # fmt: skip
