"""Training designs become torchrun commands of Megatron-LM and torchtitan, or errors with a reason.

`SWEEPER_TRAINERS` names a Python with megatron-core and torchtitan, whose parsers then read the
commands (`trainers.py`).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

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
    assert megatron_options(recompute="layernorm")["--recompute-modules"] == "layernorm"
    assert options["--mock-data"] == "--tokenizer-type"  # starts without data of one's own


def test_script_names_nodes_and_ranks():
    text = DEPLOYMENTS.deployment(vars(GPT3), "", "best")
    assert text.startswith("#!/bin/sh\n# best: gpt3_175b on 1024 h100_sxm\n# choose: data (")
    assert "learning rate (--lr" in text
    assert "not known of" not in text
    assert "CONNECTIONS=1 torchrun" in text
    assert "--nnodes 128" in text
    assert "--nproc-per-node 8" in text
    known = questions.plugin_of(load_simulator("training"), questions.DEPLOYMENTS)
    assert known is DEPLOYMENTS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schedule": "zero_bubble", "chunks": 1}, "no schedule 'zero_bubble'"),
        ({"pp": 1, "dp": 128}, "with pp: 1 write schedule: 1f1b"),
        ({"lora_rank": 16}, "Megatron-Bridge does, in Python recipes"),
        ({"model": "gemma3_27b"}, "GELU with tanh"),
        ({"gpu": "tpu_v5p"}, "not for tpu_v5p"),
        ({"recompute": "elementwise"}, "activations of experts alone"),
        ({"recompute": "mla_up_proj"}, "latent attention alone"),
        ({"recompute": "selective_op"}, "torchtitan does"),
        ({"activation_dtype": "fp8"}, "no option for activation_dtype"),
        ({"attention": "flash_fp8"}, "no option for attention in fp8"),
        ({"cp": 2, "context_exchange": "ring"}, "not 'ring'"),
        ({"cp": 2, "attention": "unfused"}, "no unfused attention"),
        ({"cp": 2, "sequence": 2050}, "multiple of 4 tokens"),
        ({"model": "mixtral_8x7b", "dtype": "fp16"}, "does not train experts in fp16"),
        ({"model": "mixtral_8x7b", "sequence_parallel": False}, "needs sequence_parallel"),
        ({"cuda_graphs": True, "recompute": "full"}, "does not replay full recomputation"),
        ({"model": "qwen3_5_27b"}, "without gates; qwen3_5_27b has other layers"),
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
    with pytest.raises(Infeasible, match="sparse_attention_not_trained"):
        DEPLOYMENTS.deployment(vars(replace(GPT3, model="deepseek_v3_2")), "", "")
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


def test_router_and_prediction_options_of_deepseek_are_passed():
    deepseek = {"model": "deepseek_v3", "gpu": "gb300", "tp": 1, "pp": 2, "dp": 128, "ep": 32}
    deepseek |= {"chunks": 8, "dtype": "fp8", "gradient_dtype": "bf16", "mtp_layers": 1}
    options = megatron_options(**deepseek, recompute="mla_up_proj+moe_act", expert_overlap="on")
    assert options["--moe-router-score-function"] == "sigmoid"
    assert options["--moe-router-num-groups"] == "8"
    assert options["--moe-router-group-topk"] == "4"
    assert options["--moe-router-topk-scaling-factor"] == "2.5"
    assert options["--mtp-num-layers"] == "1"
    assert options["--rotary-base"] == "10000"
    assert options["--fp8-recipe"] == "mxfp8"
    assert options["--recompute-modules"] == "moe_act"
    assert options["--pipeline-model-parallel-layout"].endswith("mL")
    assert {"--moe-router-enable-expert-bias", "--overlap-moe-expert-parallel-comm"} <= set(options)


def test_unknown_facts_of_a_model_are_listed():
    text = script(replace(GPT3, model="qwen_7b", tp=1, pp=1, chunks=1, schedule="1f1b", dp=8))
    assert "not known of qwen_7b, complete by hand: --norm-epsilon, --rotary-base" in text


def test_torchtitan_command_matches_the_design():
    design = {"model": "llama3_1_70b", "tp": 8, "pp": 1, "dp": 128, "chunks": 1, "zero": 3}
    design |= {"schedule": "1f1b", "recompute": "full", "shard_ranks": 32, "micro_batch": 2}
    words = arguments(replace(GPT3, **design), "torchtitan")
    options = {word: words[i + 1] for i, word in enumerate(words[:-1])}
    assert options["--config"] == "llama3_70b"
    assert options["--parallelism.data_parallel_shard_degree"] == "32"
    assert options["--parallelism.data_parallel_replicate_degree"] == "4"
    assert words[-1] == "activation-checkpoint:full"
    with pytest.raises(UserError, match="zero: 0, 2 or 3"):
        arguments(replace(GPT3, **design | {"zero": 1}), "torchtitan")
    with pytest.raises(UserError, match="zero: 0 or 1"):
        arguments(replace(GPT3, model="llama3_1_70b", zero=2), "torchtitan")
    with pytest.raises(UserError, match="no configuration of 'gpt3_175b'"):
        arguments(GPT3, "torchtitan")


LLAMA = replace(GPT3, model="llama3_1_70b", sequence=8192, chunks=5, tp=4, batch=512, dp=32)
MOE = {"model": "deepseek_v3", "gpu": "gb300", "dtype": "fp8", "sequence": 4096, "pp": 4}
MOE |= {"tp": 1, "dp": 64, "ep": 64, "batch": 2048, "gradient_dtype": "bf16", "chunks": 4}
FLAT = {"pp": 1, "chunks": 1, "schedule": "1f1b"}
SHARDED = {**FLAT, "zero": 3, "tp": 1}
PLANS = {
    "megatron": [
        {},
        {"dtype": "fp8"},
        {"cp": 2, "dp": 16},
        {"cp": 4, "dp": 8, "context_exchange": "ulysses"},
        {"cp": 4, "dp": 8, "context_exchange": "gather", "recompute": "full"},
        {**FLAT, "zero": 3, "recompute": "none"},
        {**FLAT, "gpu": "gb200", "offload_layers": 4, "recompute": "none", "tp": 8},
        {"recompute": "full", "recompute_layers": 2},
        {"recompute": "layernorm+mlp"},
        {"optimizer_dtype": "bf16", "gradient_dtype": "bf16"},
        {"shard_ranks": 8},
        {"model": "llama3_1_405b", "chunks": 8, "tp": 8, "pp": 16, "gradient_dtype": "bf16"},
        {"model": "llama3_1_8b", **FLAT, "gpu": "b200_sxm", "cuda_graphs": True, "tp": 1},
        {"model": "mixtral_8x7b", "tp": 2, "pp": 4, "ep": 8, "chunks": 2, "expert_overlap": "on"},
        {"model": "qwen3_30b", **FLAT, "tp": 1, "ep": 8, "recompute": "moe", "gpu": "b200_sxm"},
        {"model": "gpt_oss_120b", **FLAT, "tp": 1, "ep": 8, "recompute": "layernorm+moe_act"},
        {**MOE, "recompute": "mla_up_proj+mlp", "expert_overlap": "on", "mtp_layers": 1},
        {**MOE, "recompute": "mla_up_proj+moe_act+layernorm"},
        {**MOE, "cp": 2, "dp": 32, "dtype": "bf16", "recompute": "mla_up_proj"},
        {**MOE, "model": "kimi_k2_5", "recompute": "mla_up_proj"},
        {"dtype": "fp4", "gpu": "gb300", "gradient_dtype": "bf16"},
        {"chunks": 1, "schedule": "1f1b", "first_stage_layers": 9, "last_stage_layers": 11},
        {"chunks": 2, "first_stage_layers": 8, "last_stage_layers": 12},
        {"chunks": 1, "schedule": "1f1b", "last_stage_layers": 3},
        {**MOE, "pp": 16, "chunks": 2, "mtp_layers": 1, "pipeline_layout": "Et*3|(tt|)*29m|L"},
    ],
    "torchtitan": [
        {**SHARDED, "model": "llama3_1_8b", "recompute": "selective_op", "shard_ranks": 8},
        {**SHARDED, "model": "llama3_1_8b", "gpu": "b200_sxm", "dtype": "fp8", "recompute": "full"},
        {**SHARDED, "tp": 8, "recompute": "full"},
        {**SHARDED, "cp": 2, "dp": 16, "recompute": "full"},
        {"model": "llama3_1_405b", "dtype": "fp8", "tp": 8, "zero": 1, "recompute": "full"},
        {**SHARDED, "model": "qwen3_30b", "ep": 8, "recompute": "full", "gpu": "b200_sxm"},
    ],
}


@pytest.mark.slow
def test_exported_plans_are_accepted_by_the_trainers_own_parsers():
    python = os.environ.get("SWEEPER_TRAINERS")
    if not python:
        pytest.skip("SWEEPER_TRAINERS names no Python with megatron-core and torchtitan")
    lines = []
    for trainer, plans in PLANS.items():
        for plan in plans:
            design = replace(LLAMA, **plan)
            text = script(design, "", trainer).split("exec ", 1)[1].replace("\\\n", " ")
            words = shlex.split(text)
            program = words.index(
                "pretrain_gpt.py" if trainer == "megatron" else "torchtitan.train"
            )
            queues = next(w.partition("=")[2] for w in words if w.startswith("CUDA_DEVICE"))
            ranks = design.tp * design.pp * design.cp * design.dp
            capability = 9 if design.gpu.startswith("h") else 10
            lines.append(json.dumps([trainer, words[program + 1 :], ranks, queues, capability]))
    answers = subprocess.run(
        [python, str(Path(__file__).with_name("trainers.py"))],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = [json.loads(line) for line in answers.splitlines() if line.startswith('"')]
    wrong = [
        (json.loads(line)[1], said) for line, said in zip(lines, found, strict=True) if said != "ok"
    ]
    assert wrong == []


def test_uneven_layers_get_an_explicit_pipeline_layout():
    options = megatron_options(model="llama3_1_405b", chunks=8)  # 126 layers over 64 chunks
    assert options["--pipeline-model-parallel-layout"] == f"Et*1|{'t*2|' * 62}t*1L"
    assert "--num-layers-per-virtual-pipeline-stage" not in options


def test_uneven_stages_get_the_trainers_options():
    options = megatron_options(chunks=2, first_stage_layers=10, last_stage_layers=14)
    assert options["--decoder-first-pipeline-num-layers"] == "10"
    assert options["--decoder-last-pipeline-num-layers"] == "14"
    assert options["--num-virtual-stages-per-pipeline-rank"] == "2"
    layout = "Et*11|(t*12|)*6t*13L"
    options = megatron_options(schedule="1f1b", chunks=1, pipeline_layout=layout)
    assert options["--pipeline-model-parallel-layout"] == layout
    uneven = replace(GPT3, model="llama3_1_70b", first_stage_layers=9)
    with pytest.raises(UserError, match="even stages"):
        arguments(uneven, "torchtitan")


def test_gated_activations_are_those_of_the_model():
    assert "--swiglu" in megatron_options(model="llama3_1_70b", chunks=5)
    options = megatron_options(model="gpt_oss_120b", chunks=1, schedule="1f1b", tp=1)
    assert "--swiglu" not in options
    assert {"--quick-geglu", "--activation-func-clamp-value"} <= set(options)


def test_dependent_trainer_options_are_passed_together():
    assert "--no-check-for-nan-in-loss-and-grad" in megatron_options(cuda_graphs=True)
    assert "--use-precision-aware-optimizer" in megatron_options(offload=True)
    assert megatron_options(zero=3)["--ckpt-format"] == "fsdp_dtensor"
    sharded = replace(GPT3, zero=3, tp=1, pp=1, dp=1024, chunks=1, schedule="1f1b")
    assert "CONNECTIONS=32" in script(sharded)
