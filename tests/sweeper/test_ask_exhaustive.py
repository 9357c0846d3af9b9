"""For bursty loads the answer of `ask` is the cheapest of all designs and replica counts."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planning.questions.serving import QUESTIONS
from sweeper.__main__ import main
from sweeper.commands.ask import SloProbability, parsed
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
    assert main(["ask", *words, "--json"]) == 0
    printed = capsys.readouterr().out
    answer = json.loads(printed[printed.index("{\n") :])
    chosen, question = parsed(QUESTIONS, words)
    slo = SloProbability(question, chosen.confidence, chosen.band)
    space = space_of(question.space)
    rows = qualifying(Sweep.of(space, outputs="all", engine="inline").run()).collect()
    does = rows.filter(pl.Series(slo.misses(rows) <= 1.0))
    costs = [
        next(iter(question.amounts(row, question.prices[0]).values()))
        for row in does.iter_rows(named=True)
    ]
    assert answer["probability"] >= slo.least
    assert answer["design"]["cost"] == pytest.approx(min(costs), rel=0.01)
