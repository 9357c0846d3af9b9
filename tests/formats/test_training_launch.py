"""Launch files of trainers as spaces of one design."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.deployments.training import script
from formats.training_launch import is_launch, space_of_launch
from simulators.core.errors import UserError
from simulators.training.point import TrainingPoint
from sweeper.commands.show import main as show

MEGATRON = """#!/bin/bash
# Llama 3.1 8B on two nodes
NUM_NODES=2
GPUS_PER_NODE=8
TP=2
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-iters 1000
    --bf16
    --lr 3e-4
    --use-distributed-optimizer
    --overlap-grad-reduce
)
PARALLEL_ARGS="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} $PARALLEL_ARGS --sequence-parallel \\
    --num-layers-per-virtual-pipeline-stage 4 --recompute-granularity selective
"""
TORCHTITAN = """
[job]
description = "Llama 3 8B training"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 16
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
context_parallel_degree = 1
[activation_checkpoint]
mode = "full"
"""
DESIGN = TrainingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    tp=2,
    pp=2,
    dp=4,
    batch=64,
    sequence=4096,
    tokens=64 * 4096 * 500.0,
)
FIELDS = (
    *("model", "tp", "pp", "dp", "cp", "ep", "chunks", "schedule", "batch", "micro_batch"),
    *("sequence", "dtype", "recompute", "recompute_layers", "zero", "shard_ranks"),
    *("first_stage_layers", "last_stage_layers", "pipeline_layout"),
    *("context_exchange", "gradient_dtype", "optimizer_dtype", "offload", "overlap", "tokens"),
)


def axes(folder: Path, text: str, name: str = "train.sh") -> dict[str, object]:
    file = folder / name
    file.write_text(text)
    assert is_launch(file)
    space = yaml.safe_load(space_of_launch(file))
    assert space["simulator"] == "training"
    found: dict[str, object] = space["axes"]
    return found


def test_megatron_script_is_a_design(tmp_path: Path) -> None:
    assert axes(tmp_path, MEGATRON) == {
        "model": "llama3_1_8b",
        "sequence_parallel": True,
        "overlap": True,
        "cross_entropy": "eager",
        "recompute": "selective",
        "zero": 1,
        "tp": 2,
        "pp": 2,
        "micro_batch": 1,
        "batch": 128,
        "sequence": 8192,
        "dtype": "bf16",
        "chunks": 4,
        "schedule": "interleaved",
        "dp": 4,
        "tokens": 1000 * 128 * 8192,
    }


def test_samples_and_graphs_of_a_megatron_script_are_read(tmp_path: Path) -> None:
    text = MEGATRON.replace("--train-iters 1000", "--train-samples 5000 --cuda-graph-impl none")
    found = axes(tmp_path, text)
    assert (found["tokens"], found["cuda_graphs"]) == (5000 * 8192, False)


def test_torchtitan_configuration_is_a_design(tmp_path: Path) -> None:
    found = axes(tmp_path, TORCHTITAN, "llama3_8b.toml")
    assert found["model"] == "llama3_1_8b"
    assert (found["dp"], found["tp"], found["zero"]) == (16, 2, 3)
    assert (found["micro_batch"], found["batch"], found["sequence"]) == (2, 32, 8192)
    assert (found["recompute"], found["tokens"]) == ("full", 1000 * 32 * 8192)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"zero": 0, "overlap": False},
        {"zero": 2, "pp": 1, "dp": 8},
        {"first_stage_layers": 15},
        {"pipeline_layout": "Et*20|t*12L"},
        {"chunks": 2, "schedule": "interleaved"},
        {"cp": 2, "dp": 2, "context_exchange": "ulysses"},
        {"recompute": "full", "recompute_layers": 4},
        {"recompute": "layernorm+mlp", "dtype": "fp8"},
        {"zero": 1, "shard_ranks": 2, "gradient_dtype": "bf16"},
        {"offload": True, "optimizer_dtype": "bf16"},
        {"model": "qwen3_30b", "ep": 4, "sequence": 2048, "tokens": 64 * 2048 * 500.0},
    ],
)
def test_exported_megatron_scripts_are_read_back(tmp_path: Path, change: dict[str, object]) -> None:
    design = replace(DESIGN, **change)  # type: ignore[arg-type]
    found = axes(tmp_path, script(design))
    read = replace(DESIGN, **found)  # type: ignore[arg-type]
    assert {n: getattr(read, n) for n in FIELDS} == {n: getattr(design, n) for n in FIELDS}


@pytest.mark.parametrize(
    "change",
    [
        {"pp": 1, "dp": 8, "zero": 3, "fusion": "eager", "recompute": "full"},
        {"pp": 1, "dp": 8, "zero": 2, "micro_batch": 2, "recompute": "selective_op"},
        {"pp": 1, "dp": 8, "zero": 3, "shard_ranks": 4, "recompute": "none"},
        {"pp": 2, "dp": 4, "zero": 1, "gradient_dtype": "fp32", "recompute": "none"},
    ],
)
def test_exported_torchtitan_scripts_are_read_back(
    tmp_path: Path, change: dict[str, object]
) -> None:
    design = replace(DESIGN, **change)  # type: ignore[arg-type]
    found = axes(tmp_path, script(design, target="torchtitan"))
    read = replace(DESIGN, **found)  # type: ignore[arg-type]
    names = ("model", "tp", "dp", "batch", "micro_batch", "sequence", "recompute", "zero", "fusion")
    assert {n: getattr(read, n) for n in names} == {n: getattr(design, n) for n in names}
    assert read.shard_ranks == design.shard_ranks


def test_show_prints_a_launch_file_as_a_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.sh"
    file.write_text(MEGATRON)
    assert show([str(file)]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["axes"]["tp"] == 2


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (MEGATRON, "--bf16", "--bf17", "the option '--bf17' is not known; did you mean '--bf16'"),
        (MEGATRON, "--num-layers 32", "--num-layers 33", "no model of the catalog has layers 33"),
        (
            MEGATRON,
            "NUM_NODES=2\nGPUS_PER_NODE=8",
            "NUM_NODES=1\nGPUS_PER_NODE=6",
            "not a multiple of",
        ),
        (MEGATRON, "GPUS_PER_NODE=8", "", "does not state its number of GPUs"),
        (MEGATRON, "--seq-length 8192", "--seq-length long", "--seq-length is 'long', not a whole"),
        (MEGATRON, "TP=2", "TP=0", "parallel-size is '0', not a whole number from 1"),
        (
            MEGATRON,
            "--bf16",
            "--bf16 --optimizer muon",
            "--optimizer 'muon' is not modelled; modelled are adam",
        ),
        (MEGATRON, "--bf16", "--bf16 --num-distributed-optimizer-instances 0", "is '0', not a"),
        (TORCHTITAN, "steps = 1000", 'steps = "all"', "training.steps is 'all', not a whole"),
        (TORCHTITAN, '"8B"', '"9B"', "the model 'llama3_9B' of torchtitan is not known"),
        (
            TORCHTITAN,
            '"full"',
            '"most"',
            "activation_checkpoint.mode 'most' is not modelled; modelled are none",
        ),
        (TORCHTITAN, "[job]", "[jobs]", "the option 'jobs.description' is not known"),
        (TORCHTITAN, "steps = 1000", "enable_cpu_offload = true", "is not modelled"),
    ],
)
def test_malformed_launch_file_is_refused(
    tmp_path: Path, text: str, old: str, new: str, said: str
) -> None:
    assert old in text
    text = text.replace(old, new)
    with pytest.raises(UserError, match=said):
        axes(tmp_path, text, "train.sh" if "torchrun" in text else "titan.toml")
