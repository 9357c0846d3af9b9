"""The answer of `ask` is the cheapest of all designs: replicas, parallelism, routers, chunk sizes.

Every design that costs at least one percent less than the answer is simulated.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planning.questions.serving import QUESTIONS
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import load_prices
from sweeper.__main__ import main
from sweeper.commands.ask.probability import SloProbability
from sweeper.commands.ask.question import parsed
from sweeper.query.pareto import qualifying
from sweeper.space.design_space import space_of
from sweeper.sweep import Sweep

TRACES = Path(os.environ.get("SWEEPER_REFERENCE", "nowhere")) / "traces"
CONVERSATIONS = TRACES / "azure_llm_2023_conv.parquet"

DEPLOYMENTS = {
    "8b, long bursts": "--model llama3_1_8b --gpu h100_sxm --gpus 12 --workload long.csv",
    "8b, cheap gpus": "--model llama3_1_8b --gpu l40s,a10 --gpus 16 --workload short.csv",
    "8b, half precision": "--model qwen3_8b --gpu a100_sxm --gpus 8 --workload long.csv "
    "--traffic 2x",
    "14b, tight": "--model qwen3_14b --gpu h100_sxm --gpus 8 --workload short.csv --tpot 20ms",
    "32b, fp8": "--model qwen3_32b --gpu h100_sxm,l40s --gpus 8 --workload short.csv --dtype fp8",
    "70b": "--model llama3_1_70b --gpu h100_sxm --gpus 16 --workload short.csv --ttft 2s",
    "70b, 95 %": "--model llama3_1_70b --gpu h200_sxm --workload long.csv "
    "--percentile 95 --ttft 6s",
    "mixture": "--model gpt_oss_120b --gpu h100_sxm --gpus 8 --workload short.csv",
    "mixture, median": "--model qwen3_30b --gpu h100_sxm --gpus 6 --workload long.csv "
    "--percentile 50",
    "conversations": f"--model llama3_1_8b --gpu h100_sxm --gpus 4 --workload {CONVERSATIONS} "
    "--traffic 3x --requests 6000",
}
LENGTHS = {  # medians and sigmas of prompts and outputs
    "chat": (540, 0.9, 145, 0.8),
    "code": (1450, 0.8, 18, 1.0),
    "summaries": (2400, 0.4, 190, 0.9),
    "documents": (4000, 0.9, 284, 0.6),
    "short chat": (73, 1.0, 258, 0.7),
}
REQUESTS = int(os.environ.get("SWEEPER_TRACE_REQUESTS", "4000"))
LOADS = [  # lengths, arrivals, requests per second, GPU
    ("chat", "poisson", 24, "l40s"),
    ("chat", "bursty", 29, "l40s"),
    ("chat", "diurnal", 42, "a100_sxm"),
    ("code", "bursty", 12, "a100_sxm"),
    ("code", "poisson", 25, "a100_sxm"),
    ("summaries", "poisson", 18, "h100_sxm"),
    ("summaries", "diurnal", 7, "l40s"),
    ("documents", "bursty", 8.6, "h100_sxm"),
    ("short chat", "bursty", 44, "l40s"),
    ("short chat", "diurnal", 69, "l40s"),
]


def write_trace(file: Path, *, burst: int, gap_s: float, requests: int) -> None:
    """Write a quiet load with bursts: so many requests at once, now and then."""
    draw = np.random.default_rng(burst)
    quiet = np.cumsum(draw.exponential(0.5, requests))
    starts = np.arange(gap_s, quiet[-1], gap_s)
    bursts = (
        starts[:, np.newaxis] + draw.exponential(0.05, (len(starts), burst)).cumsum(1)
    ).ravel()
    arrival = np.sort(np.concatenate([quiet, bursts]))
    lengths = np.rint(draw.lognormal(np.log([700, 150]), [0.8, 0.6], (len(arrival), 2)))
    prompt, output = lengths.clip(1, 4000).astype(int).T
    columns = {"arrival_s": arrival, "prompt_tokens": prompt, "output_tokens": output}
    pl.DataFrame(columns).write_csv(file)


def write_load(file: Path, lengths: str, arrivals: str, qps: float) -> None:
    """Write a trace with Poisson, bursty or diurnal arrivals."""
    draw, rate = np.random.default_rng(len(lengths) + len(arrivals)), np.ones(REQUESTS)
    if arrivals == "bursty":
        rate = np.repeat(draw.choice([0.6, 2.2], REQUESTS // 40 + 1, p=[0.75, 0.25]), 40)[:REQUESTS]
    if arrivals == "diurnal":
        rate = 1.0 + 0.5 * np.sin(np.linspace(0.0, 6.0 * np.pi, REQUESTS))
    gaps = draw.exponential(1.0, REQUESTS) / rate
    prompt, prompt_sigma, output, output_sigma = LENGTHS[lengths]
    sizes = draw.lognormal(np.log([prompt, output]), [prompt_sigma, output_sigma], (REQUESTS, 2))
    prompts, outputs = np.rint(sizes).clip(1, [30_000, 2000]).astype(int).T
    arrival = np.cumsum(gaps) * REQUESTS / gaps.sum() / qps
    columns = {"arrival_s": arrival, "prompt_tokens": prompts, "output_tokens": outputs}
    pl.DataFrame(columns).write_csv(file)


def check_answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Simulate every design one percent cheaper than the answer: no such design is sufficient."""
    assert main(["ask", *words, "--json"]) == 0
    printed = capsys.readouterr().out
    answer = json.loads(printed[printed.index("{\n") :])
    chosen, question = parsed(QUESTIONS, words)
    slo = SloProbability(question, chosen.confidence, chosen.band)
    assert answer["probability"] >= slo.least
    prices = load_prices(question.prices[0])
    limits = {
        gpu: 0.99 * answer["design"]["cost"] / prices.usd_per_gpu_hour(load_gpu(gpu))
        for grid in question.space["union"]
        for gpu in grid["gpu"]
    }
    is_cheaper = " OR ".join(f"(gpu = '{gpu}' AND gpus < {n})" for gpu, n in limits.items())
    rules = [*question.space["constraints"], is_cheaper]
    space = space_of({**question.space, "constraints": rules})
    if sum(space.removed().values()) < space.size:
        rows = qualifying(Sweep.of(space, outputs="all", engine="inline").run()).collect()
        assert not rows.height or slo.misses(rows).min() > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("which", DEPLOYMENTS)
def test_ask_answer_is_the_cheapest_design(
    which: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if which == "conversations" and not CONVERSATIONS.is_file():
        pytest.skip("the trace is not here")
    write_trace(Path("long.csv"), burst=120, gap_s=240.0, requests=1500)
    write_trace(Path("short.csv"), burst=25, gap_s=60.0, requests=1500)
    words = [*shlex.split(DEPLOYMENTS[which]), "--engine", "vllm", "--run-with", "inline"]
    check_answer(words, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("lengths", "arrivals", "qps", "gpu"), LOADS)
def test_ask_answer_for_a_trace_is_the_cheapest_design(
    lengths: str,
    arrivals: str,
    qps: float,
    gpu: str,
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_load(Path("trace.csv"), lengths, arrivals, qps)
    asked = f"--model llama3_1_8b --gpu {gpu} --gpus 16 --engine vllm --workload trace.csv"
    check_answer([*asked.split(), "--run-with", "inline"], capsys)
