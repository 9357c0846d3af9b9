"""Traces of training steps: parts of a step worked out by hand, and the command that compares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from formats.step_traces import read_step
from planning.load_tests.training import LOAD_TESTS
from simulators.core.errors import UserError


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def message(ts: float, dur: float, group: str, name: str = "ncclDevKernel_AllReduce") -> Any:
    return event("kernel", name, ts, dur, **{"Process Group Description": group})


EVENTS = [
    event("user_annotation", "ProfilerStep#1", 0, 1000),
    event("kernel", "gemm", 100, 300),  # computes until 400
    message(350, 150, "TENSOR_MODEL_PARALLEL_GROUP"),  # 100 of it exposed
    event("kernel", "gemm", 500, 200),  # until 700
    message(600, 200, "DATA_PARALLEL_GROUP_WITH_CP"),  # 100 exposed
    event("kernel", "adam", 850, 100),
    event("gpu_user_annotation", "Optimizer.step#AdamW.step", 840, 120),
    {"ph": "M", "name": "process_name", "args": {"name": "python"}},
]
DESIGN = {"tp": 2, "pp": 1, "dp": 4, "cp": 1, "gpu": "h100_sxm"}


def trace(events: list[Any], ranks: int = 8) -> str:
    about = {
        "deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"world_size": ranks},
    }
    return json.dumps({**about, "traceEvents": events})


def test_parts_of_a_step_are_exposed_time_by_kind_of_ranks() -> None:
    found = LOAD_TESTS.read_log(trace(EVENTS), "t")
    assert found == pytest.approx(
        {
            "step_s": 1000e-6,
            "compute_s": 500e-6,
            "tp_comm_s": 100e-6,
            "dp_comm_s": 100e-6,
            "optimizer_s": 100e-6,
        }
    )
    assert read_step(trace(EVENTS), "t").idle_s == pytest.approx(200e-6)


def test_trace_of_two_equal_steps_has_the_parts_of_one() -> None:
    later = [{**e, "ts": e["ts"] + 1000} for e in EVENTS if "ts" in e]
    twice = LOAD_TESTS.read_log(trace(EVENTS + later), "t")
    assert twice == pytest.approx(LOAD_TESTS.read_log(trace(EVENTS), "t"))


def test_receives_of_a_pipeline_count_as_bubble() -> None:
    events = [EVENTS[1], message(400, 70, "", "ncclDevKernel_SendRecv")]
    assert LOAD_TESTS.read_log(trace(events), "t")["bubble_s"] == pytest.approx(70e-6)


def test_trace_of_other_ranks_is_refused_and_another_gpu_is_mentioned() -> None:
    with pytest.raises(UserError, match="4 ranks; the design has 8"):
        LOAD_TESTS.at_log(DESIGN, trace(EVENTS, ranks=4), "t")
    _, notes = LOAD_TESTS.at_log({**DESIGN, "gpu": "a100_sxm"}, trace(EVENTS), "t")
    assert "recorded on h100_sxm, the design is on a100_sxm" in notes[0]
    _, notes = LOAD_TESTS.at_log(DESIGN, trace(EVENTS), "t")
    assert "No kernel ran for 20%" in notes[0]


@pytest.mark.parametrize("text", ["{}", "no JSON", "[]", '{"traceEvents": 3}', "[1, null]"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="t "):
        read_step(text, "t")
