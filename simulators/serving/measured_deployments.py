"""Turns deployments that were measured in public into points of this simulator.

The public clients ask ten times each, all of the first wave at once, and again when answered.
Limits of engines are the frameworks' defaults on data-centre GPUs.
"""

from __future__ import annotations

from simulators.catalog.engine import load_engine
from simulators.composition.deployments import MEMORY_FRACTION, SPREAD, Deployed
from simulators.serving.point import ServingPoint

PER_CLIENT = 10
"""Requests that each client asks for in a run."""


def point_of(deployed: Deployed, *, left_out: bool = False) -> ServingPoint:
    """Return a measured deployment as a point.

    Args:
        deployed: the deployment and its load.
        left_out: whether to use the numbers fitted without its group.
    """
    framework, cut = deployed.framework, deployed.cut
    engine = load_engine(framework)
    return ServingPoint(
        model=deployed.model,
        gpu=deployed.gpu,
        tp=cut.tp,
        ep=cut.ep,
        attention_dp=cut.attention_dp,
        scheduler=engine.schedulers[0],
        runtime=f"{framework}@{deployed.group}" if left_out else framework,
        chunk_size=deployed.budget,
        poll_interval=deployed.poll_interval,
        max_batch=deployed.clients if deployed.crowded else engine.max_sequences,
        memory_fraction=MEMORY_FRACTION,
        watermark=0.0,
        dtype=deployed.dtype,
        kv_dtype=deployed.kv_dtype,
        arrivals="closed",
        clients=deployed.clients + deployed.crowded,
        requests=PER_CLIENT * deployed.clients,
        prompt_tokens=deployed.prompt,
        output_tokens=deployed.output,
        length_spread=SPREAD,
    )
