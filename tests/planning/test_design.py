"""`ask design`: lengths, amounts with units, and the printed answer."""

from __future__ import annotations

import json

import pytest

from planning.answers.design import amount, answer, load_of
from planning.flags.design import DesignFlags
from simulators.core.errors import UserError
from sweeper.commands.ask.question import main

FLAGS = DesignFlags("llama3_1_70b", "n3", "1600mm2", "1800W")
WORDS = ["--model", "llama3_1_70b", "--process", "n3", "--area", "1600mm2", "--tdp", "1800W"]


def test_printed_answer_states_device_and_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", *WORDS]) == 0
    text = capsys.readouterr().out
    assert "2 dies" in text
    assert "per million tokens" in text


def test_json_answer_has_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["design", *WORDS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_s_lo"] < found["tokens_per_s"] < found["tokens_per_s_hi"]


def test_area_that_is_smaller_than_the_logic_has_no_design(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["design", *WORDS[:-3], "20mm2", *WORDS[-2:]]) == 1
    assert "no device" in capsys.readouterr().out


def test_amounts_accept_their_unit_alone() -> None:
    assert amount("1.5e3 mm2", "mm2", "--area") == 1500.0
    for text in ("1600cm2", "0", "-3", "wide"):
        with pytest.raises(UserError, match="--area"):
            amount(text, "mm2", "--area")


def test_stated_lengths_replace_a_workload() -> None:
    load = load_of(DesignFlags("m", "n3", "1", "1", isl=30_000.0, osl=600.0, hit=0.95))
    assert (load.prompt, load.output, load.hit) == (30_000.0, 600.0, 0.95)
    chat = load_of(FLAGS)
    assert chat.prompt > 100.0
    with pytest.raises(UserError, match="--isl and --osl"):
        load_of(DesignFlags("m", "n3", "1", "1", isl=3.0))
    with pytest.raises(UserError, match="--hit"):
        load_of(DesignFlags("m", "n3", "1", "1", hit=1.0))
    with pytest.raises(UserError, match="sessions"):
        load_of(DesignFlags("m", "n3", "1", "1", workload="agentic"))


def test_agents_with_cached_prompts_cost_less_than_without() -> None:
    agent = {"isl": 30_000.0, "osl": 600.0, "tpot": 0.2}
    costs = [
        answer(DesignFlags("llama3_1_70b", "n3", "1600", "1800", hit=hit, **agent))[1][
            "usd_per_mtok"
        ]
        for hit in (0.0, 0.95)
    ]
    assert costs[1] < costs[0]


@pytest.mark.parametrize("words", [["--prove", "x.json"], ["--relax"], ["--run-with", "inline"]])
def test_options_of_a_sweep_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match=f"{words[0]}: `ask design` sweeps no designs"):
        main(["design", *WORDS, *words])
