"""Training designs become torchrun commands of Megatron-LM, or errors with a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deploy.deployments.training import DEPLOYMENTS, arguments, script
from simulators.core.contract import load_simulator
from simulators.core.errors import Infeasible, UnknownNameError, UserError
from simulators.training.point import TrainingPoint
from sweeper import questions

GPT3 = TrainingPoint(
    model="gpt3_175b",
    gpu="h100_sxm",
    tp=8,
    pp=8,
    dp=16,
    chunks=6,
    schedule="interleaved",
    batch=1536,
    sequence=2048,
    tokens=300e9,
)


def megatron_options(**changes):
    words = arguments(replace(GPT3, **changes))
    return {w: words[i + 1] if i + 1 < len(words) else "" for i, w in enumerate(words)}


def test_torchrun_command_matches_the_design():
    options = megatron_options()
    assert options["--tensor-model-parallel-size"] == "8"
    assert options["--num-layers-per-virtual-pipeline-stage"] == "2"
    assert options["--num-layers"] == "96"
    assert options["--train-iters"] == "95368"
    assert {"--sequence-parallel", "--use-distributed-optimizer", "--bf16"} <= set(options)
    assert "--group-query-attention" not in options
    assert megatron_options(cuda_graphs=True)["--cuda-graph-scope"] == "full_iteration"
    assert megatron_options(recompute="elementwise")["--recompute-modules"] == "layernorm"


def test_script_names_nodes_and_ranks():
    text = DEPLOYMENTS.deployment(vars(GPT3), "", "best")
    assert text.startswith("#!/bin/sh\n# best: gpt3_175b on 1024 h100_sxm\nexec env CUDA_DEVICE")
    assert "CONNECTIONS=1 torchrun" in text
    assert "--nnodes 128" in text
    assert "--nproc-per-node 8" in text
    known = questions.known_beside(load_simulator("training"), questions.DEPLOYMENTS)
    assert known is DEPLOYMENTS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "zero_bubble", "chunks": 1}, "no schedule 'zero_bubble'"),
        ({"lora_rank": 16}, "no adapters"),
        ({"attention": "flash_fp8"}, "no option for attention in fp8"),
        ({"cp": 2, "context_exchange": "ring"}, "not 'ring'"),
        ({"cp": 2, "attention": "unfused"}, "no unfused attention"),
        ({"cp": 2, "sequence": 2050}, "multiple of 4 tokens"),
        ({"model": "mixtral_8x7b", "dtype": "fp16"}, "does not train experts in fp16"),
        ({"model": "mixtral_8x7b", "sequence_parallel": False}, "needs sequence_parallel"),
        ({"cuda_graphs": True, "recompute": "full"}, "does not replay full recomputation"),
    ],
)
def test_options_without_megatron_support_raise_a_reason(changes, words):
    with pytest.raises(UserError, match=words):
        megatron_options(**changes)


def test_infeasible_designs_and_unknown_targets_raise_errors():
    with pytest.raises(Infeasible, match="memory_exceeds_hbm"):
        DEPLOYMENTS.deployment(
            vars(replace(GPT3, tp=1, dp=128, zero=0, schedule="1f1b", chunks=1)), "", ""
        )
    with pytest.raises(UnknownNameError, match="megatron"):
        DEPLOYMENTS.deployment(vars(GPT3), "vllm", "")


def test_overlap_and_fusion_options_are_passed():
    mixture = {"model": "mixtral_8x7b", "ep": 8, "expert_tp": 2, "tp": 2, "pp": 4, "chunks": 2}
    assert "--overlap-moe-expert-parallel-comm" in megatron_options(**mixture)
    assert "--overlap-moe-expert-parallel-comm" not in megatron_options(
        **mixture | {"expert_tp": 1}
    )
    assert "--no-gradient-accumulation-fusion" in megatron_options(fusion="eager")


def test_context_and_expert_parallel_options_are_passed():
    options = megatron_options(
        model="deepseek_v3", tp=2, pp=4, cp=2, ep=8, chunks=1, schedule="1f1b"
    )
    assert options["--context-parallel-size"] == "2"
    assert options["--cp-comm-type"] == "p2p"
    assert options["--expert-model-parallel-size"] == "8"
    assert options["--moe-layer-freq"] == "[0]*3+[1]*58"
    assert options["--kv-lora-rank"] == "512"
    assert options["--moe-shared-expert-intermediate-size"] == "2048"
    assert {"--multi-latent-attention", "--moe-grouped-gemm"} <= set(options)


def test_uneven_layers_get_an_explicit_pipeline_layout():
    options = megatron_options(model="llama3_1_405b", chunks=8)  # 126 layers over 64 chunks
    assert options["--pipeline-model-parallel-layout"] == f"Et*1|{'t*2|' * 62}t*1L"
    assert "--num-layers-per-virtual-pipeline-stage" not in options


def test_dependent_trainer_options_are_passed_together():
    assert "--no-check-for-nan-in-loss-and-grad" in megatron_options(cuda_graphs=True)
    assert "--use-precision-aware-optimizer" in megatron_options(offload=True)
    assert megatron_options(zero=3)["--ckpt-format"] == "fsdp_dtensor"
    sharded = replace(GPT3, zero=3, tp=1, pp=1, dp=1024, chunks=1, schedule="1f1b")
    assert "CONNECTIONS=32" in script(sharded)
