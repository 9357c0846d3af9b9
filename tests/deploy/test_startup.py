"""Exported commands start: the context fits the KV cache, and engines can divide the checkpoint."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from deploy.deployments.serving import EngineCommand, launch_of
from deploy.startup import KV_MARGIN, QUANTIZED
from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.engine_defaults import is_supported
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import point_from
from simulators.core.folder import ENGINES
from simulators.serving.point import ServingPoint

CONTEXT = {"vllm": "--max-model-len", "sglang": "--context-length", "trtllm": "--max_seq_len"}
BATCH = {"vllm": "--max-num-batched-tokens", "trtllm": "--max_num_tokens"}

MODELS = ("llama3_1_8b", "qwen3_32b", "gpt_oss_20b", "gemma3_27b", "phi_4")
GPUS = ("rtx_4090", "rtx_5090", "l40s", "h100_sxm", "b200_sxm")


def exported() -> list[tuple[str, ServingPoint]]:
    """Return designs with default options: engines, models, GPUs of all sizes, tp 1 to 4."""
    found = []
    for engine, model, gpu, tp in itertools.product(ENGINES.names(), MODELS, GPUS, (1, 2, 4)):
        dtype = (load_model(model).formats or ("bf16",))[0]
        if is_supported(load_gpu(gpu).peak_flops, dtype):
            scheduler = load_engine(engine).schedulers[0]
            point = {"model": model, "gpu": gpu, "tp": tp, "scheduler": scheduler, "dtype": dtype}
            found.append((engine, point_from(ServingPoint, point)))
    return found


def options_of(launch: EngineCommand) -> dict[str, str]:
    return dict(zip(launch.command, launch.command[1:], strict=False))


def test_the_context_of_every_export_fits_the_memory_beside_the_weights() -> None:
    started = cut = 0
    for engine, point in exported():
        try:
            launch = launch_of(point, engine)
        except (Infeasible, UserError):  # too large for the GPU, or not divisible
            continue
        model, gpu = load_model(point.model), load_gpu(point.gpu)
        context = int(options_of(launch)[CONTEXT[engine]])
        kv_bytes = 2 * 2 * model.full_layers * max(model.kv_heads / point.tp, 1) * model.head_dim
        weights = model.parameters * (0.5 if "w4" in point.dtype else 2.0) / point.tp
        capacity = (point.gpu_memory_utilization * gpu.hbm_bytes - 0.98 * weights) / kv_bytes
        if engine == "trtllm":
            capacity = (gpu.hbm_bytes - 0.98 * weights) / kv_bytes
        assert 0 < context <= min(model.max_context, capacity), (engine, point)
        started, cut = started + 1, cut + (context < model.max_context)
    assert started >= 60
    assert cut >= 5


def test_an_rtx_5090_does_not_get_the_whole_context_of_an_8b_model() -> None:
    point = ServingPoint(model="llama3_1_8b", gpu="rtx_5090", scheduler="vllm_v1", dtype="bf16")
    context = int(options_of(launch_of(point, "vllm"))["--max-model-len"])
    capacity = (0.9 * 32 * 2**30 - 16.1e9) / 131_072
    assert 0.5 * KV_MARGIN * capacity < context < capacity


def test_a_context_that_the_user_states_stays_if_it_fits() -> None:
    point = ServingPoint(model="llama3_1_8b", gpu="h100_sxm", max_context=16_384, dtype="bf16")
    assert options_of(launch_of(point, "vllm"))["--max-model-len"] == "16384"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        # vLLM: `assert self.total_num_kv_heads % tp_size == 0`
        ({"model": "phi_4", "tp": 4, "dtype": "bf16"}, "phi_4 has 10 KV heads"),
        # Qwen's model card: FP8 needs --enable-expert-parallel at tensor parallelism of 8
        ({"model": "qwen3_235b", "tp": 8, "dtype": "fp8_block"}, "tp_cuts_blocks"),
        ({"model": "llama3_1_8b", "cache.preemption": "swap"}, "vLLM has no option for it"),
        ({"model": "llama3_1_70b", "gpu": "rtx_5090", "dtype": "bf16"}, "weights_exceed_hbm"),
    ],
)
def test_what_would_not_start_is_refused(fields: dict[str, Any], said: str) -> None:
    fields = {"gpu": "h200_sxm", "scheduler": "vllm_v1", **fields}
    if "cache.preemption" in fields:
        fields |= {"cache.swap_bytes": 4e9, "cache.prefix_caching": False}
    with pytest.raises((UserError, Infeasible), match=said):
        launch_of(point_from(ServingPoint, fields), "vllm")


def test_experts_of_whole_gpus_start_where_split_experts_do_not() -> None:
    point = ServingPoint(
        model="qwen3_235b", gpu="h200_sxm", tp=8, ep=8, dtype="fp8_block", scheduler="vllm_v1"
    )
    assert launch_of(point, "vllm").repository == "Qwen/Qwen3-235B-A22B-FP8"


@pytest.mark.parametrize(
    ("model", "dtype", "engine", "repository"),
    [
        ("llama3_1_8b", "bf16", "vllm", "meta-llama/Llama-3.1-8B-Instruct"),
        ("llama3_1_8b", "fp8", "vllm", "meta-llama/Llama-3.1-8B-Instruct"),  # quantized at start
        ("llama3_1_8b", "fp8", "trtllm", "nvidia/Llama-3.1-8B-Instruct-FP8"),
        ("glm_4_7", "bf16", "vllm", "zai-org/GLM-4.7"),
        ("llama3_1_8b", "w4a16", "vllm", QUANTIZED),
    ],
)
def test_the_checkpoint_has_the_precision(
    model: str, dtype: str, engine: str, repository: str
) -> None:
    gpu, tp = ("b200_sxm", 8) if model == "glm_4_7" else ("h100_sxm", 1)
    point = ServingPoint(
        model=model, gpu=gpu, tp=tp, dtype=dtype, scheduler=load_engine(engine).schedulers[0]
    )
    assert launch_of(point, engine).repository == repository


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engines_own_parsers_accept_every_export(engine: str) -> None:
    if engine == "vllm":
        launchers = pytest.importorskip("vllm.entrypoints.launchers.cli_args")
        parser = launchers.make_arg_parser(
            pytest.importorskip("vllm.utils.argparse_utils").FlexibleArgumentParser()
        )
    else:
        import argparse

        parser = argparse.ArgumentParser()
        pytest.importorskip("sglang.srt.server_args").ServerArgs.add_cli_args(parser)
    parsed = 0
    for name, point in exported():
        if name == engine:
            try:
                launch = launch_of(point, engine)
            except (Infeasible, UserError):
                continue
            model = ["--model-path", launch.repository] if engine == "sglang" else []
            parser.parse_args([*model, *launch.options])  # which exits at an unknown option
            parsed += 1
    assert parsed >= 40
