"""Profiles of layers beside designs of accelerators."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning.load_tests.dataflow import LOAD_TESTS, read_profile
from simulators.core.errors import UserError
from simulators.dataflow.simulator import DataflowPoint, simulate

EXAMPLES = Path(__file__).parents[2] / "formats" / "examples"
POINT = {
    "accelerator": "eyeriss",
    "network": str(EXAMPLES / "layers.yaml"),
    "residency": "layer",
    "evaluations": 50,
}


def test_sums_of_a_profile_count_equal_layers() -> None:
    text = "layer,count,latency_s,energy_j\na,2,1e-3,4e-6\nb,1,5e-4,1e-6\n"
    found = LOAD_TESTS.read_log(text, "t")
    assert found["latency_s"] == found["chip_latency_s"] == pytest.approx(2.5e-3)
    assert found["energy_j"] == pytest.approx(9e-6)


def test_layers_are_compared_one_by_one_and_add_up_to_the_network() -> None:
    text = (EXAMPLES / "layers.csv").read_text(encoding="utf-8")
    assert LOAD_TESTS.at_log(POINT, text, "t") == ({}, ())
    parts = LOAD_TESTS.parts(POINT, text, "t")
    whole = simulate(DataflowPoint(**POINT))
    for metric in ("latency_s", "energy_j"):
        total = sum(one.predicted for one in parts if one.metric == metric)
        assert total == pytest.approx(getattr(whole, metric), rel=1e-9)
    assert [one.measured for one in parts[::2]] == [27e-6, 44e-6]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("layer,latency_s\nfirst,1e-3\n", "lacks 1 of 2 layers"),
        ("layer,latency_s\nfirst,1e-3\nsecond,1e-3\nthird,1e-3\n", "no layer 'third'"),
        ("layer,count,latency_s\nfirst,2,1e-3\nsecond,1,1e-3\n", "runs 1 times"),
    ],
)
def test_profile_of_another_network_is_refused(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        LOAD_TESTS.at_log(POINT, text, "t")


@pytest.mark.parametrize(
    "text", ["", "layer\na\n", "layer,cycles\na,-1\n", "layer,cycles,x\na,1,2\n"]
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        read_profile(text, "t")
