"""A design of the simulator `training` becomes the torchrun command that starts it on Megatron-LM.

Names of options are those of `megatron/training/arguments.py`, Megatron-LM, core 0.14 (2025).
What that trainer cannot be told, a design says: other schedules than 1F1B, interleaved or not,
unbalanced rings, adapters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deploy.quoting import command, comment
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.schedule.play import layers_of_chunk
from simulators.training.simulator import SIMULATOR

TARGET = "megatron"
MASTER = "$MASTER_ADDR:29500"
"""Where ranks meet; the shell puts in the address."""
SCHEDULES = ("1f1b", "interleaved")
CONTEXT = {"zigzag": "p2p", "ulysses": "a2a", "gather": "all_gather"}
PRECISION = {
    "bf16": ["--bf16"],
    "fp16": ["--fp16"],
    "fp8": ["--bf16", "--fp8-format", "hybrid"],
    "fp4": ["--bf16", "--fp4-format", "e2m1"],
}
SENT = ("fp32", "bf16")
MANY_QUEUES = 32
"""The most that `CUDA_DEVICE_MAX_CONNECTIONS` takes (CUDA C++ Programming Guide)."""
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}


class Deployments:
    """Writes deployments for `sweeper export`."""

    def deployment(self, point: Mapping[str, Any], target: str, name: str) -> str:
        """Return the script that starts a design; what a comment in it calls the design is `name`.

        Raises:
            Infeasible: the design cannot exist.
            UnknownNameError: nothing answers to the target.
            UserError: Megatron-LM cannot be told what the design asks.
        """
        if target not in ("", TARGET):
            raise UnknownNameError("target", target, (TARGET,))
        design = TrainingPoint(**point)
        [answer] = SIMULATOR.evaluate(batch_of([design])).to_pylist()
        if answer["status"] == "infeasible":
            reason, _, words = answer["reason"].partition(": ")
            raise Infeasible(reason, words)
        return script(replace(design, tokens=answer["run_tokens"]), name)


DEPLOYMENTS = Deployments()


def script(design: TrainingPoint, name: str = "") -> str:
    """Return the shell script of a design, one option a line.

    Raises:
        UserError: Megatron-LM cannot be told what the design asks.
    """
    gpus = design.tp * design.pp * design.cp * design.dp
    cluster = cluster_for(design.cluster, load_gpu(design.gpu))
    each = min(gpus, cluster.gpus_per_node)
    start = [
        "env",
        f"CUDA_DEVICE_MAX_CONNECTIONS={_connections(design)}",
        "torchrun",
        "--nnodes",
        str(math.ceil(gpus / each)),
        "--nproc-per-node",
        str(each),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        MASTER,
        "pretrain_gpt.py",
    ]
    header = comment(f"{name or 'design'}: {design.model} on {gpus} {design.gpu}")
    return f"#!/bin/sh\n{header}exec {command([*start, *arguments(design)], [MASTER])}"


def _connections(design: TrainingPoint) -> int:
    """Return the queues of a GPU: the trainer asks tensor and context ranks for one, FSDP for more.

    With one, messages start in the order of the kernels around them.
    """
    overlaps = design.overlap and _hides_experts(design)
    return MANY_QUEUES if overlaps or design.zero in SHARDING else 1


def arguments(design: TrainingPoint) -> list[str]:
    """Return what Megatron-LM is told.

    Raises:
        UserError: it cannot be told what the design asks.
    """
    _check(design)
    model = load_model(design.model)
    found = [*_model(model, design), *_ranks(design, model), *PRECISION[design.dtype]]
    iterations = math.ceil(design.tokens / (design.batch * design.sequence))
    found += _pairs(
        {
            "--micro-batch-size": design.micro_batch,
            "--global-batch-size": design.batch,
            "--train-iters": iterations,
        }
    )
    if design.recompute == "selective":
        found.append("--recompute-activations")
    if design.recompute == "elementwise":
        found += [
            "--recompute-granularity",
            "selective",
            "--recompute-modules",
            "layernorm",
            "moe_act" if model.experts else "mlp_act",
        ]
    if design.recompute == "full":
        some = design.recompute_layers
        found += [
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "block" if some else "uniform",
            "--recompute-num-layers",
            str(some or 1),
        ]
    if design.offload:
        found += ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"]
    if design.zero:
        found.append("--use-distributed-optimizer")
    if design.zero in SHARDING:
        found += [
            "--use-megatron-fsdp",
            "--data-parallel-sharding-strategy",
            SHARDING[design.zero],
            "--ckpt-format",
            "fsdp_dtensor",
        ]
    if design.overlap:
        found.append("--overlap-grad-reduce")
        found += ["--overlap-param-gather"] if design.zero else []
        found += ["--tp-comm-overlap"] if design.tp > 1 and design.sequence_parallel else []
        found += ["--overlap-moe-expert-parallel-comm"] if _hides_experts(design) else []
    if design.fusion == "eager":
        found.append("--no-gradient-accumulation-fusion")
    if design.cuda_graphs:
        found += [
            "--cuda-graph-impl",
            "local",
            "--cuda-graph-scope",
            "full_iteration",
            "--no-check-for-nan-in-loss-and-grad",
        ]
    if design.gradient_dtype == "bf16":
        found.append("--grad-reduce-in-bf16")
    backend = "unfused" if design.attention == "unfused" else "flash"
    return [*found, "--attention-backend", backend]


def _check(design: TrainingPoint) -> None:
    """Raise `UserError` if Megatron-LM has no word for what a design asks."""
    if design.schedule not in SCHEDULES:
        raise UserError(
            f"Megatron-LM has no schedule '{design.schedule}', it has 1f1b, interleaved"
        )
    if design.cp > 1 and design.context_exchange not in CONTEXT:
        raise UserError(
            f"Megatron-LM's context ranks exchange keys by {', '.join(CONTEXT)}, "
            f"not '{design.context_exchange}'"
        )
    if design.gradient_dtype not in SENT:
        raise UserError(
            f"Megatron-LM sums gradients in {', '.join(SENT)}, not {design.gradient_dtype}"
        )
    model = load_model(design.model)
    for cannot, words in (
        (
            design.cp > 1 and design.sequence % (2 * design.cp),
            f"context ranks take sequences of a multiple of {2 * design.cp} tokens",
        ),
        (
            design.cp > 1 and design.attention == "unfused",
            "context ranks have no unfused attention",
        ),
        (model.experts and design.dtype == "fp16", "experts are not trained in fp16"),
        (
            model.experts and design.tp > 1 and not design.sequence_parallel,
            "experts on tensor ranks need sequence_parallel",
        ),
        (
            design.cuda_graphs and design.recompute == "full",
            "CUDA graphs replay no full recomputation",
        ),
    ):
        if cannot:
            raise UserError(f"Megatron-LM: {words}")
    if design.attention == "flash_fp8":
        raise UserError("pretrain_gpt.py has no option for attention in fp8; attention: flash")
    if design.lora_rank:
        raise UserError("Megatron-LM's pretrain_gpt.py trains no adapters; lora_rank must be 0")
    if design.shard_ranks:
        raise UserError("export writes sharding over all data ranks; shard_ranks must be 0")


def _model(model: LanguageModel, design: TrainingPoint) -> list[str]:
    """Return the shape of the model."""
    found = _pairs(
        {
            "--num-layers": model.layers,
            "--hidden-size": model.hidden,
            "--ffn-hidden-size": model.ffn,
            "--num-attention-heads": model.heads,
            "--kv-channels": model.head_dim,
            "--seq-length": design.sequence,
            "--max-position-embeddings": max(design.sequence, model.learned_positions),
        }
    )
    if model.kv_heads < model.heads and not model.is_latent:
        found += ["--group-query-attention", "--num-query-groups", str(model.kv_heads)]
    found += ["--swiglu"] if model.gated_ffn else []
    found += ["--normalization", "RMSNorm"] if model.norm == "rms_norm" else []
    kind = "learned_absolute" if model.learned_positions else "rope"
    found += ["--position-embedding-type", kind]
    found += [] if model.tied_embeddings else ["--untie-embeddings-and-output-weights"]
    found += [] if model.biases else ["--disable-bias-linear"]
    if model.experts:
        found += _pairs(
            {
                "--num-experts": model.experts,
                "--moe-router-topk": model.top_k,
                "--moe-ffn-hidden-size": model.expert_ffn,
                "--moe-token-dispatcher-type": "alltoall",
            }
        )
        found.append("--moe-grouped-gemm")
    if model.shared_experts:
        width = model.shared_experts * model.expert_ffn
        found += ["--moe-shared-expert-intermediate-size", str(width)]
    if model.experts and model.dense_layers:
        found += ["--moe-layer-freq", f"[0]*{model.dense_layers}+[1]*{model.expert_layers}"]
    if model.is_latent:
        found += [
            "--multi-latent-attention",
            *_pairs(
                {
                    "--kv-lora-rank": model.kv_lora_rank,
                    "--qk-head-dim": model.qk_nope_head_dim,
                    "--qk-pos-emb-head-dim": model.qk_rope_head_dim,
                    "--v-head-dim": model.v_head_dim,
                }
            ),
        ]
        found += ["--q-lora-rank", str(model.q_lora_rank)] if model.q_lora_rank else []
    found += ["--qk-layernorm"] if model.qk_norm or model.is_latent else []
    found += ["--add-qkv-bias"] if model.qkv_biases else []
    return found


def _ranks(design: TrainingPoint, model: LanguageModel) -> list[str]:
    """Return how the model is cut."""
    found = _pairs(
        {
            "--tensor-model-parallel-size": design.tp,
            "--pipeline-model-parallel-size": design.pp,
            "--context-parallel-size": design.cp,
        }
    )
    number = design.pp * design.chunks
    if model.layers % number:
        found += ["--pipeline-model-parallel-layout", _layout(model.layers, number)]
    elif design.chunks > 1:
        found += ["--num-layers-per-virtual-pipeline-stage", str(model.layers // number)]
    if design.cp > 1:
        found += ["--cp-comm-type", CONTEXT[design.context_exchange]]
    if model.experts:
        found += _pairs(
            {
                "--expert-model-parallel-size": design.ep,
                "--expert-tensor-parallel-size": design.expert_tp,
            }
        )
    if design.sequence_parallel and design.tp > 1:
        found.append("--sequence-parallel")
    return found


def _layout(layers: int, number: int) -> str:
    """Return the layers of each chunk in Megatron-LM's letters, with the embedding and the loss.

    >>> _layout(14, 4)
    'Et*3|t*4|t*4|t*3L'
    """
    held = [layers_of_chunk(chunk, number, layers, layers) for chunk in range(number)]
    return "E" + "|".join(f"t*{many}" if many else "" for many in held) + "L"


def _hides_experts(design: TrainingPoint) -> bool:
    """Say whether tokens travel to experts while another micro-batch computes."""
    cluster = cluster_for(design.cluster, load_gpu(design.gpu))
    crosses = design.ep * design.expert_tp > cluster.gpus_per_node
    return crosses and design.chunks > 1 and design.recompute != "full"


def _pairs(options: Mapping[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in (name, str(value))]
