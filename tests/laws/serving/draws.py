"""Random serving points over all axes, for the laws of runs and of steady states.

Points are drawn from every axis; options that only work together are made consistent, and each
point keeps a few groups of options: with all of them at once, hardly a point is feasible. Most
points share few deployments, because the prices of a deployment take half a second.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from simulators.core.fields import columns_of
from simulators.serving.options import ARRIVALS, CLOSED, EVENLY, MPS, SHAPES, SPECULATIONS
from simulators.serving.point import DEPLOYED, NOTHING, ServingPoint
from tests.laws.laws import Draw, between, drawn, one_of, whole
from tests.serving.cases import SCHEDULERS

MIXTURES = ("gpt_oss_20b", "mixtral_8x7b")
MODELS = ("llama3_1_8b", "llama3_1_8b", "qwen3_4b", "gemma3_4b", "llama2_13b", *MIXTURES)
GPUS = ("h100_sxm", "h100_sxm", "a100_sxm", "h200_sxm", "b200_sxm", "mi300x", "l40s")
GROUPS = ("speculation", "cache", "pools", "scheduling", "sessions", "lora", "dynamic", "power")
GROUPS += ("kv_tiers", "autoscaling", "moe", "lengths", "colocation", "measurement", "parallel")
USUAL = {column.name: column.default for column in columns_of(ServingPoint)}
EVENTS = ("pools.", "cache.p", "cache.offload", "sessions.", "autoscaling.", "lora.", "lengths.")
EVENTS += (
    "kv_tiers.",
    "measurement.",
    "colocation.",
    "moe.",
    "dynamic.",
    "scheduling.",
    "ep",
    "attention_dp",
)
EVENTS += ("speculation.rule", "speculation.disable", "client.frontend_s")
"""Axes, or beginnings of their names, that the analytic fidelity lacks."""
PARALLEL = ("tp", "pp", "ep", "attention_dp", "replicas", "router")

DRAWS: dict[str, Draw] = {
    "model": one_of(*MODELS),
    "gpu": one_of(*GPUS),
    "tp": one_of(1, 2, 4),
    "pp": one_of(1, 1, 2),
    "ep": one_of(1, 1, 2),
    "attention_dp": one_of(1, 1, 2),
    "replicas": one_of(1, 2, 3),
    "scheduler": one_of(*SCHEDULERS, "vllm_v1", "sglang", "trtllm"),
    "chunk_size": one_of(64, 512, 2048, 8192),
    "max_batch": one_of(1, 2, 8, 64, 256),
    "qps": between(0.01, 50.0),
    "prompt_tokens": one_of(0, 1, 17, 128, 1000, 4000),
    "output_tokens": one_of(0, 1, 2, 16, 128, 300),
    "requests": whole(1, 60),
    "seed": whole(0, 10**9),
    "memory_fraction": one_of(0.9, 0.9, 0.6, 0.95),
    "dtype": one_of("fp16", "fp16", "fp8"),
    "kv_dtype": one_of("fp16", "fp16", "fp8"),
    "release": one_of("", "", "2025-06-30"),
    "max_context": one_of(0, 0, 8192),
    "slo_ttft_s": between(0.01, 5.0),
    "slo_tpot_s": between(0.001, 0.2),
    "prices": one_of("public_cloud", "owned"),
    "usd_per_gpu_hour": one_of(None, 0.0, 2.5),
    "sm_scale": one_of(1.0, 1.0, 1.0, 0.5, 2.0),
    "clock_scale": one_of(1.0, 1.0, 1.0, 0.5, 1.5),
    "bandwidth_scale": one_of(1.0, 1.0, 1.0, 0.5, 2.0),
    "l2_scale": one_of(1.0, 1.0, 1.0, 0.5, 2.0),
    "speculation.method": one_of(*(name for name in SPECULATIONS if name != "draft")),
    "speculation.num_draft_tokens": one_of(0, 1, 3, 5),
    "speculation.topk": one_of(1, 1, 2),
    "speculation.tree_nodes": one_of(0),
    "speculation.disable_batch": one_of(0, 0, 4),
    "speculation.acceptance": one_of("", "0.7", "0.9,0.5,0.2"),
    "cache.block_size": one_of(1, 16, 16, 32, 64),
    "cache.watermark": one_of(None, None, 0.0, 0.1),
    "cache.prefix_host_bytes": one_of(0.0, 0.0, 1e9),
    "cache.swap_bytes": one_of(4e9, 1e8),
    "cache.view_refresh_s": one_of(0.0, 0.0, 5.0),
    "kv_tiers.nvme_bytes": one_of(0.0, 0.0, 1e9),
    "kv_tiers.nvme_read_bytes_per_s": one_of(None, 1e9, 1e11),
    "kv_tiers.nvme_write_bytes_per_s": one_of(None, 1e9),
    "kv_tiers.nvme_latency_s": one_of(1e-4, 0.0),
    "kv_tiers.remote_bytes": one_of(0.0, 1e9, 1e11),
    "kv_tiers.remote_read_bytes_per_s": one_of(None, 1e9, 1e11),
    "kv_tiers.remote_write_bytes_per_s": one_of(None, 1e9),
    "kv_tiers.remote_total_bytes_per_s": one_of(None, 1e10),
    "kv_tiers.remote_latency_s": one_of(1e-3, 0.1),
    "kv_tiers.eviction": one_of("lru", "lru", "lfu", "belady"),
    "kv_tiers.page_tokens": one_of(0, 0, 64),
    "pools.prefill_gpus": one_of(1, 2),
    "pools.decode_gpus": one_of(1, 2),
    "pools.prefill_tp": one_of(1, 0, 2),
    "pools.decode_tp": one_of(1, 0, 2),
    "pools.decode_gpu": one_of(NOTHING, "a100_sxm"),
    "pools.kv_link": one_of("auto", "auto", "rdma", "infinite"),
    "pools.kv_link_bytes_per_s": one_of(None, None, 1e9, 1e11),
    "scheduling.max_batch_tokens": one_of(64, 4096, 16384),
    "scheduling.poll_interval": one_of(0, 0, 1, 5),
    "scheduling.long_prefill_token_threshold": one_of(0, 0, 100),
    "moe.redundant_experts": one_of(0, 0, 8),
    "moe.routing_skew": one_of(0.0, 0.5),
    "arrivals.process": one_of(*ARRIVALS, CLOSED),
    "arrivals.clients": one_of(1, 2, 7, 40),
    "arrivals.burst_s": between(0.1, 10.0),
    "arrivals.calm_s": between(0.1, 10.0),
    "arrivals.period_s": between(10.0, 1e5),
    "lengths.spread": one_of(0.0, 0.5, 0.99),
    "lengths.shape": one_of(*SHAPES),
    "lengths.max_output_tokens": one_of(0, 0, 20),
    "sessions.turns": one_of(1, 2, 4),
    "sessions.turn_tokens": one_of(0, 0, 30),
    "sessions.system_prompt_tokens": one_of(0, 100),
    "client.think_s": one_of(0.0, 0.0, 0.3),
    "client.frontend_s": one_of(0.0, 0.0, 0.05),
    "client.stream_interval": one_of(1, 1, 0, 4),
    "measurement.warmup": one_of(0, 0, 5),
    "measurement.server": one_of("warm", "warm", "warm", "fresh"),
    "autoscaling.min_replicas": one_of(0, 1),
    "autoscaling.replica_qps": between(0.1, 10.0),
    "autoscaling.startup_s": between(0.0, 60.0),
    "autoscaling.interval_s": between(0.5, 30.0),
    "autoscaling.scale_down_s": between(0.0, 60.0),
    "lora.adapters": one_of(0, 1, 5),
    "lora.rank": one_of(8, 16),
    "lora.slots": one_of(0, 2),
    "colocation.models": one_of(NOTHING, NOTHING, "qwen3_4b"),
    "colocation.qps": one_of(None, 0.5),
    "colocation.time_share": one_of(1.0, 1.0, 0.5),
    "colocation.power_share": one_of(1.0, 1.0, 0.5),
    "colocation.sharing": one_of("time_slice", MPS),
    "colocation.other_sm_share": one_of(0.0),
    "colocation.sm_share": one_of(1.0, 0.5),
    "colocation.mig_slice": one_of(""),
    "dynamic.exit_depth": one_of(1.0, 0.7),
    "dynamic.exit_depth_std": one_of(0.0, 0.1),
    "dynamic.mod_capacity": one_of(1.0, 0.5),
    "dynamic.prune_keep_ratio": one_of(1.0, 0.5),
    "power.clock_hz": one_of(0.0, 0.0, 1.2e9),
    "power.limit_w": one_of(0.0, 0.0, 400.0),
}


@functools.cache
def deployment(number: int) -> dict[str, Any]:
    """Return the deployment of a number: three groups of options, without usual contradictions."""
    dice = np.random.default_rng(number)
    kept = dice.choice(GROUPS, 3, replace=False)
    found = {}
    for column in columns_of(ServingPoint):
        group = "parallel" if column.name in PARALLEL else column.name.partition(".")[0]
        if column.name in ("scheduler", *DEPLOYED):
            value = drawn(column, DRAWS.get(column.name), dice)
            found[column.name] = value if group in kept or group not in GROUPS else column.default
    if found["scheduler"] == "lightllm" or found["speculation.method"] != NOTHING:
        found["pp"] = 1
    if found["model"] not in MIXTURES:
        found |= {"ep": 1, "attention_dp": 1, "moe.redundant_experts": 0}
    if found["ep"] == 1:
        found |= {"moe.redundant_experts": 0, "moe.backend": USUAL["moe.backend"]}
    if found["gpu"] == "a100_sxm":
        found["dtype"] = found["kv_dtype"] = "fp16"
    if found["attention_dp"] > 1:
        found["pools.prefill_gpus"] = 0
    if found["lora.adapters"] or found["speculation.method"] != NOTHING:
        found |= {name: USUAL[name] for name in USUAL if name.startswith("dynamic.")}
    if found["pools.prefill_gpus"]:
        for pool in ("pools.prefill", "pools.decode"):
            found[f"{pool}_gpus"] *= found[f"{pool}_tp"] or found["tp"]
    if found["dynamic.exit_depth"] == 1.0:
        found["dynamic.exit_depth_std"] = 0.0
    if found["colocation.sharing"] != MPS:
        found["colocation.sm_share"] = 1.0
    return found


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point on one of few deployments, whose prices are what takes time."""
    dice = np.random.default_rng(point["seed"])
    point = point | deployment(int(dice.geometric(0.25)))
    kept = dice.choice(GROUPS, 5, replace=False)
    for name, usual in USUAL.items():
        group = name.partition(".")[0]
        if name not in DEPLOYED and group in GROUPS and group not in kept:
            point[name] = usual
    if point["scheduler"] == "lightllm":
        point["cache.block_size"] = 1
    if point["model"] not in MIXTURES:
        point["moe.routing_skew"] = 0.0
    if point["arrivals.process"] == CLOSED:
        point["sessions.turns"] = 1
    if point["sessions.turns"] == 1:
        point["sessions.turn_tokens"] = 0
    if not point["cache.prefix_caching"]:
        for name in ("cache.prefix_host_bytes", "kv_tiers.nvme_bytes", "kv_tiers.remote_bytes"):
            point[name] = 0.0
    if point["cache.offload_to"] == "ssd":
        point["kv_tiers.nvme_bytes"] = 0.0
    if not point["prompt_tokens"] * point["output_tokens"]:
        point["lengths.shape"] = EVENLY
    return point


def steady(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point of the analytic fidelity, which has no options of events."""
    point = consistent(point)
    for name, usual in USUAL.items():
        if name.startswith(EVENTS):
            point[name] = usual
    if point["scheduler"] in ("lightllm", "faster_transformer", "orca"):
        point["scheduler"] = "vllm_v1"
    if point["arrivals.process"] != CLOSED:
        point["arrivals.process"] = "poisson"
    return point
