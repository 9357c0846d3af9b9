"""Serving designs become documented engine commands, or errors with a reason."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.benchmark import benchmark
from deploy.deployments.serving import deployment, launch_of
from simulators.catalog.engine import load_engine
from simulators.core.errors import Infeasible, UserError
from simulators.core.fields import updated
from simulators.core.folder import ENGINES
from simulators.serving.options import AutoscaleConfig, CacheConfig, MoeConfig
from simulators.serving.point import ServingPoint
from simulators.serving.schedulers.trtllm import FILLED

LLAMA = ServingPoint(model="llama3_1_70b", gpu="h100_sxm", tp=4, scheduler="vllm_v1", max_batch=256)
DESIGNS = {
    "vllm": replace(LLAMA, chunk_size=2048, replicas=3),
    "vllm, prompts whole": replace(
        LLAMA,
        scheduler="vllm",
        scheduling=replace(LLAMA.scheduling, max_batch_tokens=8192),
        dtype="fp8",
    ),
    "sglang": replace(
        LLAMA,
        scheduler="sglang",
        chunk_size=8192,
        kv_dtype="fp8",
        runtime="eager",
        scheduling=replace(LLAMA.scheduling, poll_interval=10),
    ),
    "trtllm": replace(LLAMA, scheduler="trtllm", chunk_size=8192, dtype="fp8", kv_dtype="fp8"),
    "trtllm, memory filled": replace(LLAMA, scheduler="trtllm_max_utilization", chunk_size=8192),
    "sarathi on two stages": replace(LLAMA, scheduler="sarathi", pp=2, dtype="w4a16"),
    "drafts of a head": replace(
        LLAMA,
        chunk_size=2048,
        speculation=replace(LLAMA.speculation, method="eagle3", num_draft_tokens=4),
    ),
    "drafts of a look-up": replace(
        LLAMA, scheduler="sglang", speculation=replace(LLAMA.speculation, method="ngram")
    ),
    "drafts of the model's own": replace(
        LLAMA, scheduler="trtllm", speculation=replace(LLAMA.speculation, method="mtp")
    ),
    "drafts of a model": replace(
        LLAMA,
        speculation=replace(
            LLAMA.speculation, method="draft", draft_model="llama3_1_8b", acceptance="0.7"
        ),
    ),
    "adapters": replace(
        LLAMA, tp=8, chunk_size=2048, lora=replace(LLAMA.lora, adapters=500, rank=32)
    ),
    "experts": ServingPoint(
        model="deepseek_v3",
        gpu="h200_sxm",
        tp=1,
        attention_dp=8,
        ep=8,
        dtype="fp8",
        scheduler="sglang",
        chunk_size=4096,
    ),
    "experts by DeepEP": ServingPoint(
        model="deepseek_v3",
        gpu="h200_sxm",
        tp=1,
        attention_dp=32,
        ep=32,
        dtype="fp8",
        scheduler="sglang",
        chunk_size=4096,
        moe=MoeConfig(backend="deepep_auto", redundant_experts=32),
    ),
}


@pytest.mark.parametrize("engine", ENGINES.names())
@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_command_options_are_documented_and_match_the_design(
    design: ServingPoint, engine: str
) -> None:
    known = load_engine(engine)
    if design.scheduler not in (*known.schedulers, *known.optional_schedulers):
        with pytest.raises(UserError, match="does not implement the scheduler"):
            launch_of(design, engine)
        return
    launch = launch_of(design, engine)
    flags = [w for w in launch.command if w.startswith("--")]
    assert set(flags) <= set(known.options)
    assert len(flags) == len(set(flags))
    assert launch.gpus == design.tp * design.pp * design.attention_dp
    options = dict(zip(launch.command, launch.command[1:], strict=False))
    batch = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests"}
    ranks = design.attention_dp if engine == "sglang" else 1  # which divide the limit
    assert options[batch.get(engine, "--max_batch_size")] == str(design.max_num_seqs * ranks)
    for key in (yaml.safe_load(launch.file) or {}) if launch.file else {}:
        assert key in known.keys


MIXTURES = {
    "fp8_block": ("deepseek_v3", "h200_sxm"),
    "bf16+fp4": ("deepseek_v3", "b200_sxm"),
    "bf16+w4a8": ("gpt_oss_120b", "b200_sxm"),
    "bf16+w4a16": ("gpt_oss_120b", "h100_sxm"),
}


def test_kubernetes_autoscaler_uses_the_simulated_rule() -> None:
    design = replace(
        DESIGNS["vllm"],
        autoscaling=AutoscaleConfig(min_replicas=1, replica_qps=0.25, scale_down_s=90.0),
    )
    deployed, _, scaler = yaml.safe_load_all(deployment(design, "kubernetes"))
    assert deployed["spec"]["replicas"] == 1
    assert scaler["kind"] == "HorizontalPodAutoscaler"
    said = scaler["spec"]
    assert (said["minReplicas"], said["maxReplicas"]) == (1, 3)
    assert said["scaleTargetRef"]["name"] == deployed["metadata"]["name"]
    assert said["metrics"][0]["pods"]["target"]["averageValue"] == "250m"
    assert said["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 90
    for target in ("vllm", "dynamo"):
        assert "# priced with 1 to 3 replicas" in deployment(design, target)
        assert "# priced with" not in deployment(
            replace(design, autoscaling=replace(design.autoscaling, min_replicas=3)), target
        )


def test_default_batch_of_vllm_is_at_most_the_token_budget() -> None:
    words = launch_of(replace(LLAMA, max_batch=None, chunk_size=512), "vllm").command
    assert words[words.index("--max-num-seqs") + 1] == "512"


def test_stream_interval_is_passed_where_the_engine_has_the_option() -> None:
    often = replace(LLAMA, chunk_size=2048, client=replace(LLAMA.client, stream_interval=10))
    assert "stream_interval: 10" in launch_of(replace(often, scheduler="trtllm"), "trtllm").file
    for point, engine in ((often, "vllm"), (replace(often, scheduler="sglang"), "sglang")):
        words = launch_of(point, engine).command
        assert words[words.index("--stream-interval") + 1] == "10"
    for scheduler, engine in (("trtllm", "trtllm"), ("sglang", "sglang"), ("vllm_v1", "vllm")):
        silent = launch_of(replace(LLAMA, scheduler=scheduler, chunk_size=2048), engine)
        assert "stream" not in f"{silent.command} {silent.file}"


def test_schedule_conservativeness_is_an_option_of_sglang() -> None:
    rules = replace(LLAMA.scheduling, schedule_conservativeness=0.3)
    usual = replace(LLAMA, scheduler="sglang", chunk_size=2048)
    words = launch_of(replace(usual, scheduling=rules), "sglang").command
    assert words[words.index("--schedule-conservativeness") + 1] == "0.3"
    assert "--schedule-conservativeness" not in launch_of(usual, "sglang").command


EAGER = {
    "vllm": "--enforce-eager",
    "sglang": "--disable-cuda-graph",
    "trtllm": "cuda_graph_config",  # of it, without
}


@pytest.mark.parametrize("engine", ENGINES.names())
@pytest.mark.parametrize("dtype", MIXTURES)
def test_quantized_checkpoint_needs_no_dtype_option(dtype: str, engine: str) -> None:
    model, gpu = MIXTURES[dtype]
    design = ServingPoint(
        model=model,
        gpu=gpu,
        tp=8,
        dtype=dtype,
        scheduler=load_engine(engine).schedulers[0],
        chunk_size=2048,
    )
    text = deployment(design, engine)
    remarks = {
        "bf16+fp4": "replace QUANTIZED_CHECKPOINT by a bf16+fp4 checkpoint of deepseek_v3",
    }
    said = remarks.get(dtype, f"the checkpoint sets the precision: use a {dtype} checkpoint")
    assert f"# {said}\n" in text
    assert "--quantization" not in text
    needs_more = (dtype, engine) == ("bf16+w4a8", "vllm")
    assert ("VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1" in text) == needs_more


@pytest.mark.parametrize("engine", ENGINES.names())
def test_fully_mxfp4_models_are_refused(engine: str) -> None:
    design = replace(
        LLAMA,
        gpu="b200_sxm",
        dtype="w4a8",
        scheduler=load_engine(engine).schedulers[0],
        chunk_size=2048,
    )
    assert f"{engine} documents no weights in w4a8; it has fp16" in refused(design)


@pytest.mark.parametrize(("engine", "note"), EAGER.items())
def test_eager_runtime_disables_cuda_graphs(engine: str, note: str) -> None:
    scheduler = load_engine(engine).schedulers[0]
    design = replace(
        LLAMA,
        scheduler=scheduler,
        chunk_size=2048,
        scheduling=replace(LLAMA.scheduling, max_batch_tokens=8192),
    )
    replayed, eager, alone = (
        deployment(updated(design, change), engine)
        for change in (
            {"runtime": "graphs"},
            {"runtime": "eager"},
            {"runtime": "eager", "tp": 1, "model": "llama3_1_8b"},
        )
    )
    assert [note in text for text in (replayed, eager, alone)] == [engine == "trtllm"] + 2 * [
        engine != "trtllm"
    ]
    host = "# kernels are launched one by one; the host's time is that of "
    assert host not in replayed
    assert f"{host}vLLM of 2023, one process a GPU\n" in eager
    assert f"{host}AWQ's TinyChat of 2023, one process\n" in alone


def test_five_designs_deploy_with_stable_names() -> None:
    for name, design in list(DESIGNS.items())[:5]:
        text = deployment(design, "", f"space {name}")
        assert text.startswith(f"# space {name}: llama3_1_70b on h100_sxm")
        command = text.split("\n", 1)[1]
        words = shlex.split(command.split("YAML\n")[-1].replace("\\\n", " "), comments=True)
        made = "nvidia/Llama-3.1-70B-Instruct-FP8"  # TensorRT-LLM quantizes nothing at start
        assert (made if name == "trtllm" else "meta-llama/Llama-3.1-70B-Instruct") in words


@pytest.mark.parametrize("target", ["kubernetes", "dynamo"])
def test_manifests_request_the_gpus(target: str) -> None:
    documents = list(yaml.safe_load_all(deployment(DESIGNS["vllm"], target)))
    text = str(documents)
    assert "'nvidia.com/gpu': 4" in text or "'nvidia.com/gpu': '4'" in text
    assert "'replicas': 3" in text
    assert "'nodeSelector': {'nvidia.com/gpu.product': 'NVIDIA-H100-80GB-HBM3'}" in text
    assert "'secretKeyRef': {'name': 'hf-token-secret', 'key': 'token', 'optional': True}" in text
    assert "latest" not in text


@pytest.mark.parametrize("target", ["kubernetes", "dynamo"])
def test_manifests_for_amd_request_amd_gpus_and_note_unknowns(target: str) -> None:
    text = deployment(replace(DESIGNS["vllm"], gpu="mi300x"), target)
    list(yaml.safe_load_all(text))
    assert "amd.com/gpu" in text
    assert "# no node label of mi300x is known here" in text
    assert "# the image is NVIDIA's build" in text


def test_kserve_gets_an_inference_service_per_design() -> None:
    [service] = yaml.safe_load_all(deployment(DESIGNS["vllm"], "kserve", "mine"))
    assert (service["apiVersion"], service["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    predictor = service["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)
    [container] = predictor["containers"]
    assert container["command"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-70B-Instruct"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
    service, engine = yaml.safe_load_all(deployment(DESIGNS["trtllm"], "kserve"))
    assert engine["kind"] == "ConfigMap"
    assert "engine.yaml" in engine["data"]


def test_skypilot_gets_a_service_with_its_accelerators() -> None:
    found = yaml.safe_load(deployment(DESIGNS["vllm"], "skypilot", "mine"))
    assert found["resources"]["accelerators"] == "H100:4"
    assert found["service"]["replicas"] == 3
    words = shlex.split(found["run"].replace("\\\n", " "))
    assert words[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-70B-Instruct"]
    assert words[-4:] == ["--port", str(found["resources"]["ports"]), "--host", "0.0.0.0"]  # noqa: S104 - inside the pod
    script = yaml.safe_load(deployment(DESIGNS["trtllm"], "skypilot"))["run"]
    assert script.index("engine.yaml") < script.index("trtllm-serve")


@pytest.mark.parametrize(
    ("target", "change", "said"),
    [
        ("skypilot", {"gpu": "h20"}, "SkyPilot's name of h20 is not known"),
        ("skypilot", {"pp": 4}, "one replica spans 2 nodes"),
        ("kserve", {"pp": 4}, "one replica spans 2 nodes"),
    ],
)
def test_services_of_one_pod_refuse_what_they_cannot_hold(
    target: str, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        deployment(replace(DESIGNS["vllm"], **change), target)


POOLS = replace(
    LLAMA,
    chunk_size=2048,
    replicas=2,
    pools=replace(
        LLAMA.pools,
        prefill_gpus=4,
        decode_gpus=4,
        prefill_tp=2,
        decode_gpu="h200_sxm",
        kv_link="rdma",
    ),
)


def test_disaggregated_pools_become_two_worker_types() -> None:
    text = deployment(POOLS, "dynamo", "mine")
    assert text.startswith(
        "# mine: llama3_1_70b on h100_sxm, 4 replica(s) of 2 GPU(s) for prefill; "
        "on h200_sxm, 2 replica(s) of 4 GPU(s) for decode\n"
    )
    assert "pods request the cluster's RDMA devices" in text
    assert "priced with NVLink" not in text
    workers = yaml.safe_load(text)["spec"]["components"][1:]
    for worker, role, replicas, tp, gpu in zip(
        workers, ("prefill", "decode"), (4, 2), ("2", "4"), ("H100-80GB-HBM3", "H200"), strict=True
    ):
        assert (worker["name"], worker["type"], worker["replicas"]) == (role, role, replicas)
        pod = worker["podTemplate"]["spec"]
        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": f"NVIDIA-{gpu}"}
        (main,) = pod["containers"]
        assert main["resources"]["limits"] == {"nvidia.com/gpu": tp}
        options = dict(zip(main["args"], main["args"][1:], strict=False))
        assert options["--tensor-parallel-size"] == tp
        assert options["--disaggregation-mode"] == role
        assert yaml.safe_load(options["--kv-transfer-config"]) == {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
        }


def test_llm_d_gets_chart_values_for_both_pools() -> None:
    text = deployment(POOLS, "llm_d", "mine")
    values = yaml.safe_load(text)
    assert values["modelArtifacts"]["uri"] == "hf://meta-llama/Llama-3.1-70B-Instruct"
    for role, replicas, tp, gpu in (
        ("prefill", 4, 2, "H100-80GB-HBM3"),
        ("decode", 2, 4, "H200"),
    ):
        pool = values[role]
        assert pool["replicas"] == replicas
        assert pool["parallelism"] == {"tensor": tp, "data": 1, "dataLocal": 1}
        assert pool["nodeSelector"] == {"nvidia.com/gpu.product": f"NVIDIA-{gpu}"}
        (vllm,) = pool["containers"]
        assert "--tensor-parallel-size" not in vllm["args"]
        options = dict(zip(vllm["args"], vllm["args"][1:], strict=False))
        assert options["--max-num-seqs"] == str(POOLS.max_batch)
        assert yaml.safe_load(options["--kv-transfer-config"])["kv_connector"] == "NixlConnector"


def test_pools_inside_a_node_warn_that_pods_share_no_nvlink() -> None:
    text = deployment(
        replace(
            POOLS, replicas=1, pools=replace(POOLS.pools, kv_link="auto", decode_gpu="nothing")
        ),
        "dynamo",
    )
    assert (
        "# priced with NVLink between the pools, which pods do not share: see pools.kv_link" in text
    )


@pytest.mark.parametrize(
    ("change", "target", "said"),
    [
        ({}, "", "which no engine's command starts: --target dynamo"),
        ({}, "vllm", "which no engine's command starts: --target dynamo"),
        ({}, "kubernetes", "which no engine's command starts: --target dynamo"),
        ({"scheduler": "sglang"}, "dynamo", "pools of sglang workers are not written here"),
        ({"scheduler": "trtllm"}, "dynamo", "workers are not written here, only those of vLLM"),
        (
            {"pools.kv_link": "infinite"},
            "dynamo",
            "kv_link infinite: a hypothetical link cannot be deployed",
        ),
        ({"pools.kv_link": "nvlink"}, "dynamo", "share no NVLink; choose rdma"),
        (
            {"pools.kv_transfer": "by_layer"},
            "dynamo",
            "transfers a KV cache after prefill; choose serial",
        ),
        (
            {"pp": 4, "pools.prefill_gpus": 16, "pools.decode_gpus": 16},
            "dynamo",
            "decode spans 2 nodes",
        ),
        ({"scheduler": "sglang"}, "llm_d", "pools of sglang workers are not written here"),
        (
            {"pp": 2, "pools.decode_gpus": 8},
            "llm_d",
            "counts the GPUs of a worker by tensor and data parallelism alone",
        ),
        ({"gpu": "mi300x"}, "llm_d", "vLLM image does not support mi300x"),
        (
            {"pools.prefill_gpus": 0, "pools.decode_gpus": 0},
            "llm_d",
            "supports only separate pools",
        ),
        ({"pools.decode_gpus": 0}, "dynamo", "one_pool_without_the_other"),
        ({"pools.prefill_gpus": 0}, "dynamo", "one_pool_without_the_other"),
    ],
)
def test_undeployable_pools_raise_a_reason(change: dict[str, Any], target: str, said: str) -> None:
    assert said in refused(updated(POOLS, change), target)


def refused(design: ServingPoint, target: str = "") -> str:
    with pytest.raises((UserError, Infeasible)) as caught:
        deployment(design, target)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "target", "said"),
    [
        ({"scheduler": "orca"}, "", "no supported engine implements the scheduler 'orca'"),
        (
            {"scheduler": "sglang"},
            "vllm",
            "vllm does not implement the scheduler 'sglang'; engines that do: sglang",
        ),
        ({"cache.block_size": 7}, "", "vllm has no KV blocks of 7 tokens; it has 8, 16, 32"),
        ({"chunk_size": 100}, "", "a token budget of at least max_batch: 100 tokens for 256"),
        ({"bandwidth_scale": 2.0}, "", "a hypothetical device cannot be deployed: bandwidth_scale"),
        ({"tp": 8, "pp": 2}, "kubernetes", "one replica spans 2 nodes"),
    ],
)
def test_undeployable_designs_raise_a_reason(
    change: dict[str, Any], target: str, said: str
) -> None:
    assert said in refused(updated(LLAMA, {"chunk_size": 2048} | change), target)


@pytest.mark.parametrize(
    ("engine", "on", "off", "on_host"),
    [
        (
            "vllm",
            "--enable-prefix-caching",
            "--no-enable-prefix-caching",
            "--kv-offloading-backend native --kv-offloading-size 59.605",
        ),
        ("sglang", "--page-size", "--disable-radix-cache", "--hicache-size 64"),
        (
            "trtllm",
            "enable_block_reuse: true",
            "enable_block_reuse: false",
            "host_cache_size: 64000000000",
        ),
    ],
)
def test_prefix_cache_option_is_passed_to_the_engine(
    engine: str, on: str, off: str, on_host: str
) -> None:
    def said(**changes: Any) -> str:
        scheduler = load_engine(engine).schedulers[0]
        point = ServingPoint(
            model="llama3_1_8b",
            gpu="h100_sxm",
            scheduler=scheduler,
            dtype="bf16",
            kv_dtype="bf16",
            chunk_size=2048,
            cache=CacheConfig(block_size=32),
        )
        launch = launch_of(updated(point, changes), engine)
        return shlex.join(launch.options) + launch.file

    assert on in said(**{"cache.prefix_caching": True})
    assert off not in said(**{"cache.prefix_caching": True})
    assert on in said()
    assert off in said(**{"cache.prefix_caching": False})
    assert on_host in said(**{"cache.prefix_caching": True, "cache.prefix_host_bytes": 64e9})


TIERED = updated(
    DESIGNS["vllm"],
    {
        "cache.prefix_caching": True,
        "cache.prefix_host_bytes": 64e9,
        "kv_tiers.nvme_bytes": 1e12,
        "kv_tiers.remote_bytes": 1e13,
        "kv_tiers.load": "request",
        "kv_tiers.page_tokens": 64,
    },
)


def test_tiers_of_vllm_are_secondary_tiers_of_its_connector() -> None:
    options = launch_of(TIERED, "vllm").options
    config = json.loads(options[options.index("--kv-transfer-config") + 1])
    extra = config["kv_connector_extra_config"]
    assert (config["kv_connector"], extra["spec_name"]) == (
        "OffloadingConnector",
        "TieringOffloadingSpec",
    )
    assert (extra["cpu_bytes_to_use"], extra["block_size"]) == (4 * 64e9, 64)
    assert [one["root_dir"] for one in extra["secondary_tiers"]] == [
        "/mnt/kv-nvme",
        "/mnt/kv-remote",
    ]
    twice = updated(
        TIERED,
        {
            "kv_tiers.nvme_bytes": 0.0,
            "kv_tiers.remote_bytes": 0.0,
            "kv_tiers.write_policy": "write_through_selective",
        },
    )
    assert '"store_threshold": 2' in " ".join(launch_of(twice, "vllm").options)


def test_tiers_of_sglang_are_its_hierarchical_cache() -> None:
    change = {"scheduler": "sglang", "kv_tiers.load": "batch", "kv_tiers.page_tokens": 0}
    change |= {"kv_tiers.nvme_bytes": 0.0, "kv_tiers.write_policy": "write_back"}
    options = " ".join(launch_of(updated(TIERED, change), "sglang").options)
    assert (
        "--enable-hierarchical-cache --hicache-size 64 --hicache-write-policy write_back" in options
    )
    assert "--hicache-storage-backend mooncake" in options


@pytest.mark.parametrize(
    ("engine", "change", "said"),
    [
        ("vllm", {"kv_tiers.eviction": "lfu"}, "evicts by lru"),
        ("vllm", {"kv_tiers.write_policy": "write_back"}, "as they are computed"),
        ("vllm", {"kv_tiers.write_policy": "write_through_selective"}, "store_threshold"),
        ("vllm", {"kv_tiers.load": "batch"}, "write request"),
        ("vllm", {"cache.prefix_host_bytes": 0.0}, "through host memory"),
        ("vllm", {"kv_tiers.shared": "host"}, "never host memory"),
        ("vllm", {"kv_tiers.shared": "nothing"}, "share a remote store"),
        ("sglang", {}, "one storage backend"),
        ("sglang", {"cache.prefix_host_bytes": 0.0}, "needs host memory"),
        ("sglang", {"kv_tiers.nvme_bytes": 0.0, "kv_tiers.eviction": "lfu"}, "GPU memory too"),
        ("sglang", {"kv_tiers.nvme_bytes": 0.0}, "page size of GPU memory"),
        ("sglang", {"kv_tiers.nvme_bytes": 0.0, "kv_tiers.page_tokens": 0}, "write batch"),
        ("trtllm", {}, "host memory only"),
    ],
)
def test_tiers_that_an_engine_lacks_are_refused_by_name(
    engine: str, change: dict[str, Any], said: str
) -> None:
    scheduler = load_engine(engine).schedulers[0]
    assert said in refused(updated(TIERED, {"scheduler": scheduler} | change), engine)


def test_trtllm_waits_for_the_share_of_tokens_that_its_scheduler_simulates() -> None:
    waits = replace(DESIGNS["trtllm"], scheduling=replace(LLAMA.scheduling, poll_interval=10))
    file = yaml.safe_load(launch_of(waits, "trtllm").file)
    assert file["batch_wait_timeout_iters"] == 10
    assert file["batch_wait_max_tokens_ratio"] == FILLED


def test_no_benchmark_command_is_written_for_agents() -> None:
    with pytest.raises(UserError, match="a benchmark with sessions of agents"):
        benchmark(replace(LLAMA, workload="agentic"), "vllm", "a/model", "", "trace.jsonl")


def test_templates_of_users_cannot_reach_the_interpreter(workplace: Path) -> None:
    folder = workplace / "catalog" / "orchestrators"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("a: {{ point.__class__.__mro__ }}\n")
    assert "mine.yaml: access to attribute '__class__'" in refused(DESIGNS["vllm"], "mine")
    (folder / "mine.yaml").write_text("a: {{ point.no_such_option }}\n")
    assert "no attribute 'no_such_option'" in refused(DESIGNS["vllm"], "mine")
    (folder / "mine.yaml").write_text("replicas: {{ workers[0].point.replicas }}\n")
    assert deployment(DESIGNS["vllm"], "mine").endswith("\nreplicas: 3\n")


def test_all_to_all_backend_uses_the_option_of_each_engine() -> None:
    design = updated(DESIGNS["experts by DeepEP"], {"moe.backend": "deepep_low_latency"})
    options = " ".join(launch_of(design, "sglang").command)
    assert "--moe-a2a-backend deepep --deepep-mode low_latency" in options
    assert "two-batch" not in options
    halves = updated(design, {"moe.two_batch_overlap": True})
    assert "--enable-two-batch-overlap" in launch_of(halves, "sglang").command
    assert "--enable-eplb --ep-num-redundant-experts 32" in options
    vllm = replace(design, scheduler="vllm_v1", runtime="vllm")
    assert "--all2all-backend deepep_low_latency" in " ".join(launch_of(vllm, "vllm").command)
    for backend, engine in (("deepep_auto", "vllm"), ("deepep_low_latency", "trtllm")):
        other = replace(
            vllm,
            moe=replace(vllm.moe, backend=backend),
            scheduler={"vllm": "vllm_v1"}.get(engine, engine),
        )
        with pytest.raises(UserError, match=r"moe\.backend"):
            launch_of(other, engine)


def test_lora_options_state_the_number_of_adapters() -> None:
    design = DESIGNS["adapters"]
    options = " ".join(launch_of(design, "vllm").command)
    assert "--enable-lora --max-loras 256 --max-lora-rank 32 --max-cpu-loras 500" in options
    sglang = replace(
        design, scheduler="sglang", runtime="sglang", lora=replace(design.lora, slots=300)
    )
    assert "--max-loras-per-batch 300" in " ".join(launch_of(sglang, "sglang").command)
    for change in ({"scheduler": "trtllm", "runtime": "trtllm"}, {"lora.kernels": "by_token"}):
        engine = change.get("scheduler", "vllm")
        with pytest.raises(UserError, match="adapter"):
            launch_of(updated(design, change), engine)  # type: ignore[arg-type]


def test_gpu_partitions_are_not_deployed() -> None:
    with pytest.raises(UserError, match="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        launch_of(
            replace(LLAMA, colocation=replace(LLAMA.colocation, sharing="mps", sm_share=0.5)),
            "vllm",
        )


def test_medusa_heads_are_passed_only_to_trtllm() -> None:
    medusa = replace(
        LLAMA,
        chunk_size=2048,
        speculation=replace(LLAMA.speculation, method="medusa", num_draft_tokens=4),
    )
    assert '"method": "medusa"' in launch_of(medusa, "vllm").options[-1]
    for scheduler, engine in (("sglang", "sglang"), ("trtllm", "trtllm")):
        with pytest.raises(UserError, match=f"{engine} drafts by .*, not by medusa"):
            launch_of(replace(medusa, scheduler=scheduler), engine)


@pytest.mark.parametrize(
    "change",
    [
        {"scheduling.mixed_step": "overlapped"},
        {"cache.offload_to": "peer"},
        {"cache.offload_to": "ssd"},
        {"dynamic.exit_depth": 0.5},
    ],
)
def test_options_without_engine_support_are_not_deployed(change: dict[str, object]) -> None:
    with pytest.raises(UserError, match="no engine on offer"):
        launch_of(updated(LLAMA, change), "vllm")  # type: ignore[arg-type]


def test_ahead_of_time_engines_have_no_launch_command() -> None:
    with pytest.raises(UserError, match="built ahead by trtllm-build"):
        launch_of(replace(LLAMA, scheduler="trtllm", runtime="trtllm_executor"), "trtllm")
