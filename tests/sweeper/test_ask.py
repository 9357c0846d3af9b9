"""`ask` answers a question by flags with a deployment, or with the obstacle."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from sweeper.__main__ import main

QUESTION = "ask --model llama3_1_8b --gpu h100_sxm --gpus 2 --qps 1 --requests 60 --run-with inline"


def ask(words: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(shlex.split(words)) == code
    captured = capsys.readouterr()
    return captured.err if code == 2 else captured.out


def test_ask_answers_a_question_by_flags(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ask(QUESTION, capsys)
    assert "per million tokens" in text
    assert "SLO: TTFT p99 <= " in text
    assert "P(meets SLO) " in text
    commands = ("vllm serve", "trtllm-serve", "--model-path")
    assert any(f"{command} meta-llama/Llama-3.1-8B" in text for command in commands)
    assert "Prices: public_cloud, h100_sxm $3.99 an hour (2026-11" in text
    assert "Next   python -m sweeper report ask_llama3_1_8b_" in text
    answer = json.loads(ask(f"{QUESTION} --json", capsys))
    row = answer["design"]
    assert row["ttft_p99_s"] <= 1.0
    assert row["tpot_p99_s"] <= 0.05
    assert row["tp"] * row["pp"] * row["replicas"] <= 2
    assert answer["probability"] >= 0.8
    cheaper = answer["next_best"]
    assert cheaper["cost"] >= row["cost"] or cheaper["probability"] < 0.8
    assert main(["export", answer["space"], row["key"], "--target", "kubernetes"]) == 0
    assert main(["pareto", answer["space"]]) == 0


def test_ask_prints_the_evidence_of_each_gpu(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = QUESTION.replace("h100_sxm", "h100_sxm,mi300x").replace("--gpus 2", "--gpus 1")
    text = ask(both, capsys)
    assert "No measured kernels for mi300x" in text
    assert "Best design per gpu" in text
    assert "measured" in text
    assert "90 % prediction interval: TTFT p99 " in text
    assert "Time by evidence: " in text
    shares = json.loads(ask(f"{both} --json", capsys))["time_by_evidence"]
    assert shares["h100_sxm"]["measured"] + shares["h100_sxm"]["fitted"] > 0.5
    assert shares["mi300x"]["datasheet"] > 0.5
    assert sum(shares["mi300x"].values()) == pytest.approx(1.0)


def test_ask_returns_the_most_probable_design(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = QUESTION.replace("h100_sxm", "h100_sxm,mi300x").replace("--gpus 2", "--gpus 1")
    words = f"{both} --tpot 9ms --confidence 99.9"
    answer = json.loads(ask(f"{words} --json", capsys))
    chances = [device["design"]["probability"] for device in answer["devices"] if device["does"]]
    assert len(chances) == 2
    assert answer["probability"] == max(chances) < 0.999
    assert "no design reaches P(meets SLO) = 99.9 %" in " ".join(ask(words, capsys).split())


def test_ask_reports_slos_without_a_feasible_design(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ask(f"{QUESTION} --ttft 0.001", capsys, code=1)
    assert "No design on at most 2 of h100_sxm meets" in text
    assert "Nearest design: " in text


def test_ask_does_not_advise_deadlines_where_no_request_fits(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = " ".join(ask(f"{QUESTION} --isl 200000 --osl 10", capsys, code=1).split())
    assert "none: no request fits" in said
    assert "of 200000 prompt tokens or more" in said
    assert "use shorter requests (--isl, --osl, --workload), a model with a longer" in said
    assert "--tpot)" not in said


def test_ask_names_the_missing_budget(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = ask(f"{QUESTION} --budget 1", capsys, code=1)
    assert "No design on at most 2 of h100_sxm meets the SLO within the budget." in text
    assert "A budget of $3.99 is enough (--budget)." in text
    assert "faster GPUs" not in text
    ask(f"{QUESTION} --budget 3.99", capsys)


def test_ask_reports_a_substituted_model_file(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "nvidia/Llama-3.1-8B-Instruct-FP8 is simulated as llama3_1_8b"
    asked = QUESTION.replace("llama3_1_8b", "nvidia/Llama-3.1-8B-Instruct-FP8")
    assert said in " ".join(ask(asked, capsys).split())
    assert "is simulated as" not in ask(QUESTION, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ask --model llama3_1_8b", "the following arguments are required: --gpu"),
        ("ask --model lama --gpu h100_sxm", "unknown model 'lama'"),
        ("ask --model llama3_1_8b --gpu h1000", "unknown gpu 'h1000'"),
        ("ask --model llama3_1_8b --gpu h100_sxm --engine tgi", "choose from sglang, trtllm, vllm"),
        ("ask --model llama3_1_8b --gpu h100_sxm --qps 0", "write a number above zero"),
        ("ask --model llama3_1_8b --gpu h100_sxm --price h100=-1", "write dollars per hour"),
        ("ask --model llama3_1_8b --gpu h100_sxm --tpot 50", "write 50ms, or 50s"),
        ("ask --model llama3_1_70b --gpu t4 --gpus 1", "does not fit on 1 t4"),
    ],
)
def test_mistakes_are_explained(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert said in ask(words, capsys, code=2)
