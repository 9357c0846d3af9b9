"""Load tests and server metrics of other tools, read as measured rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from planning.calibrate.logs import rows_of_logs
from planning.load_tests.serving import read_log
from simulators.core.errors import UserError

LAUNCH = {"gpu": "h100_sxm", "framework": "vllm"}

VLLM = {
    "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 160,
    "request_rate": "inf",
    "max_concurrency": 16,
    "completed": 160,
    "total_input_tokens": 144_000,
    "total_output_tokens": 28_800,
    "request_throughput": 5.2,
    "output_throughput": 936.0,
    "mean_ttft_ms": 120.0,
    "median_ttft_ms": 100.0,
    "mean_tpot_ms": 14.5,
    "p99_itl_ms": 40.0,
}
SGLANG = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 16,
    "completed": 160,
    "total_input_tokens": 144_000,
    "total_output_tokens": 28_800,
    "mean_ttft_ms": 120.0,
    "mean_tpot_ms": 14.5,
    "output_throughput": 936.0,
}
GENAI_PERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 5.2},
    "time_to_first_token": {"unit": "ms", "avg": 120.0, "p50": 100.0, "p99": 300.0},
    "inter_token_latency": {"unit": "ms", "avg": 14.5},
    "output_sequence_length": {"unit": "tokens", "avg": 180.0},
    "input_sequence_length": {"unit": "tokens", "avg": 900.0},
    "input_config": {
        "model_names": ["meta-llama/Llama-3.1-8B-Instruct"],
        "perf_analyzer": {"stimulus": {"concurrency": 16}},
    },
}
AIPERF = {
    **{name: value for name, value in GENAI_PERF.items() if name != "input_config"},
    "request_count": {"unit": "requests", "avg": 160},
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"]},
        "loadgen": {"concurrency": 16},
    },
}
INFERENCEX = {
    "hw": "h100-cw",
    "conc": 16,
    "image": "vllm/vllm-openai:v0.18.0",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "infmax_model_prefix": "llama8b",
    "framework": "vllm",
    "precision": "bf16",
    "spec_decoding": "none",
    "disagg": False,
    "isl": 1000,
    "osl": 200,
    "is_multinode": False,
    "tp": 1,
    "ep": 1,
    "dp_attention": "false",
    "tput_per_gpu": 5616.0,
    "mean_ttft": 0.12,
    "median_ttft": 0.1,
    "mean_tpot": 0.0145,
    "mean_intvty": 68.9,
}
METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{LABELS} 3.0
vllm:generation_tokens_total{LABELS} 64000.0
vllm:iteration_tokens_total_bucket{LABELS,le="+Inf"} 4000.0
vllm:iteration_tokens_total_sum{LABELS} 384000.0
vllm:iteration_tokens_total_count{LABELS} 4000.0
vllm:time_to_first_token_seconds_sum{LABELS} 42.0
vllm:time_to_first_token_seconds_count{LABELS} 350.0
vllm:request_time_per_output_token_seconds_sum{LABELS} 5.075
vllm:request_time_per_output_token_seconds_count{LABELS} 350.0
vllm:request_prompt_tokens_sum{LABELS} 315000.0
vllm:request_prompt_tokens_count{LABELS} 350.0
vllm:request_generation_tokens_sum{LABELS} 63000.0
vllm:request_generation_tokens_count{LABELS} 350.0
process_start_time_seconds 1.7e+09
""".replace("LABELS", 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"')
LOGS = {
    "vllm": json.dumps(VLLM),
    "sglang": json.dumps(SGLANG),
    "genai-perf": json.dumps(GENAI_PERF),
    "aiperf": json.dumps(AIPERF),
    "inferencex": json.dumps([INFERENCEX]),
    "metrics": METRICS,
}


def written(folder: Path, text: str) -> Path:
    file = folder / "log.json"
    file.write_text(text)
    return file


@pytest.mark.parametrize("tool", LOGS)
def test_logs_of_one_load_are_the_same_measured_row(tmp_path: Path, tool: str) -> None:
    stated = {**LAUNCH, "model": "llama3_1_8b"}
    [row] = rows_of_logs([written(tmp_path, LOGS[tool])], stated)
    assert row["model"] == "llama3_1_8b"
    assert (row["gpu"], row["dtype"], row["clients"]) == ("h100_sxm", "bf16", 16)
    assert (row["prompt_tokens"], row["output_tokens"]) == (1000, 200)  # longest; the mean is 90 %
    assert row["tpot_s"] == pytest.approx(0.0145)
    assert row["ttft_s"] == (None if tool == "metrics" else pytest.approx(0.12))


@pytest.mark.parametrize("tool", ["vllm", "genai-perf", "aiperf", "inferencex", "metrics"])
def test_model_of_a_log_is_read(tmp_path: Path, tool: str) -> None:
    [row] = rows_of_logs([written(tmp_path, LOGS[tool])], LAUNCH)
    assert row["model"] == "llama3_1_8b"


def test_inferencex_rows_state_the_launch(tmp_path: Path) -> None:
    ranks = {
        **INFERENCEX,
        "hw": "b200",
        "model": "deepseek-ai/DeepSeek-R1",
        "framework": "trt",
        "precision": "fp8",
        "tp": 8,
        "ep": 8,
        "dp_attention": "true",
    }
    [row] = rows_of_logs([written(tmp_path, json.dumps(ranks))], {})
    assert (row["gpu"], row["framework"], row["dtype"]) == ("b200_sxm", "trtllm", "fp8_block")
    assert (row["tp"], row["ep"], row["attention_dp"]) == (1, 8, 8)


def test_metrics_of_a_server_compare_as_a_log() -> None:
    found = read_log(METRICS, "metrics.txt")
    assert found == pytest.approx({"ttft_mean_s": 0.12, "tpot_mean_s": 0.0145})


@pytest.mark.parametrize(
    ("text", "stated", "said"),
    [
        (json.dumps(VLLM), {"framework": "vllm"}, "does not name the GPU; state it: --gpu"),
        (json.dumps(SGLANG), {"gpu": "h100_sxm"}, "does not name the model; state it: --model"),
        (json.dumps({**VLLM, "model_id": "my-model"}), LAUNCH, "which is not in the catalog"),
        (
            json.dumps({**VLLM, "backend": "openai"}),
            {"gpu": "l4"},
            "does not name the engine; state it",
        ),
        (
            json.dumps({**VLLM, "max_concurrency": None, "request_rate": 4.0}),
            LAUNCH,
            r"no fixed number of clients \(4 requests per second\)",
        ),
        (json.dumps({**VLLM, "total_input_tokens": 0}), LAUNCH, "states no lengths of requests"),
        (json.dumps({**VLLM, "total_input_tokens": math.inf}), LAUNCH, "states no lengths of req"),
        ('{"mean_tpot_ms": "fast"}', LAUNCH, "no result of a serving benchmark"),
        (json.dumps({**INFERENCEX, "disagg": True}), {}, "separate prefill and decode pools"),
        (json.dumps({**INFERENCEX, "spec_decoding": "mtp"}), {}, "speculative decoding"),
        (json.dumps({"conc": 4, "isl": 9, "osl": 9}), {}, "row 1 states no latencies"),
        (json.dumps({**INFERENCEX, "isl": None}), {}, "isl is None, not a number above zero"),
        (json.dumps({**INFERENCEX, "tp": math.inf}), {}, "tp is inf, not a number above zero"),
        (METRICS.replace("350.0", "0.0"), LAUNCH, "has the vLLM server answered a request"),
        (
            METRICS + 'vllm:generation_tokens_total{engine="0",model_name="other"} 1.0\n',
            LAUNCH,
            "metrics of 2 models",
        ),
        (
            METRICS + 'vllm:spec_decode_num_drafts_total{engine="0"} 7.0\n',
            LAUNCH,
            "server with speculative decoding",
        ),
    ],
)
def test_log_that_states_too_little_is_refused(
    tmp_path: Path, text: str, stated: dict[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        rows_of_logs([written(tmp_path, text)], stated)


def test_metrics_without_an_engine_are_of_no_further_engine(tmp_path: Path) -> None:
    more = METRICS + 'vllm:lora_requests_info{max_lora="1"} 1.0\n'
    rows = [rows_of_logs([written(tmp_path, text)], LAUNCH) for text in (METRICS, more)]
    assert rows[0] == rows[1]


def test_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        rows_of_logs([tmp_path / "none.json"], LAUNCH)
