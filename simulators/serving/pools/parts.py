"""A deployment of two pools is two deployments: one that reads prompts, one that decodes."""

from __future__ import annotations

from dataclasses import replace

from simulators.composition.replica import NOTHING
from simulators.core.errors import Infeasible
from simulators.serving.point import ServingPoint


def pools_of(point: ServingPoint) -> tuple[ServingPoint, ...]:
    """Return the pools of a point as points that have none: itself, or two.

    Raises:
        Infeasible: one pool is there without the other, or its GPUs are no whole replicas.

    >>> both = ServingPoint("llama3_1_8b", "h100_sxm", prefill_gpus=1, decode_gpus=4, decode_tp=2)
    >>> [(pool.tp, pool.replicas) for pool in pools_of(both)]
    [(1, 1), (2, 2)]
    """
    if not point.prefill_gpus and not point.decode_gpus:
        return (point,)
    if not point.prefill_gpus or not point.decode_gpus:
        raise Infeasible(
            "one_pool_without_the_other",
            f"prefill_gpus {point.prefill_gpus}, decode_gpus {point.decode_gpus}",
        )
    return (
        _pool(point, "prefill", point.prefill_gpus, point.prefill_tp, point.gpu),
        _pool(point, "decode", point.decode_gpus, point.decode_tp, point.decode_gpu),
    )


def _pool(point: ServingPoint, name: str, gpus: int, tp: int, gpu: str) -> ServingPoint:
    """Return one pool; what is not said of it is as of the whole."""
    tp = tp or point.tp
    each = tp * point.pp * point.attention_dp
    if gpus % each:
        raise Infeasible(f"{name}_pool_is_no_whole_replicas", f"{gpus} GPUs, {each} a replica")
    return replace(
        point,
        gpu=point.gpu if gpu == NOTHING else gpu,
        tp=tp,
        replicas=point.replicas * gpus // each,
        prefill_gpus=0,
        decode_gpus=0,
        prefill_tp=0,
        decode_tp=0,
        decode_gpu=NOTHING,
    )
