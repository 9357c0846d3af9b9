"""Logs of serving benchmarks are read as metrics."""

from __future__ import annotations

import json

import pytest

from planning.load_tests.serving import read_log
from simulators.core.errors import UserError

VLLM = {
    "mean_ttft_ms": 120.0,
    "median_ttft_ms": 90.0,
    "p99_ttft_ms": 400.0,
    "mean_tpot_ms": 20.0,
    "median_itl_ms": 18.0,
    "mean_e2el_ms": 2000.0,
    "request_throughput": 3.5,
    "output_throughput": 700.0,
    "completed": 100,
    "model_id": "x",
}
PRINTED = """\
============ Serving Benchmark Result ============
Successful requests:                     100
Request throughput (req/s):              3.50
Output token throughput (tok/s):         700.00
---------------Time to First Token----------------
Mean TTFT (ms):                          120.00
Median TTFT (ms):                        90.00
P99 TTFT (ms):                           400.00
Mean TPOT (ms):                          20.00
"""
AIPERF = {
    "time_to_first_token": {"unit": "ms", "avg": 120.0, "p50": 90.0, "p99": 400.0},
    "inter_token_latency": {"unit": "ms", "avg": 20.0},
    "request_throughput": {"unit": "requests/sec", "avg": 3.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 700.0},
}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(VLLM),
        "\n".join([json.dumps({"x": 1}), json.dumps(VLLM)]),
        PRINTED,
        json.dumps(AIPERF),
    ],
    ids=["vllm", "sglang", "printed", "aiperf"],
)
def test_benchmark_logs_are_read_as_metrics(text: str) -> None:
    found = read_log(text, "log")
    said = {
        "ttft_mean_s": 0.12,
        "ttft_p50_s": 0.09,
        "ttft_p99_s": 0.4,
        "tpot_mean_s": 0.02,
        "requests_per_s": 3.5,
        "tokens_per_s": 700.0,
    }
    assert {n: found[n] for n in said} == pytest.approx(said)


def test_text_without_a_benchmark_is_refused() -> None:
    with pytest.raises(UserError, match="log holds no result of a serving benchmark"):
        read_log("nothing here", "log")
