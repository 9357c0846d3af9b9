"""Events of a run, as tables and as a load-test report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from planning.load_tests.serving import LOAD_TESTS
from simulators.core.contract import Records
from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate

POINT = {"model": "llama3_1_8b", "gpu": "h100_sxm", "requests": 120, "qps": 60.0}


def test_request_records_sum_to_the_metrics() -> None:
    tables = SIMULATOR.records({**POINT, "replicas": 2})
    metrics = simulate(point_from(ServingPoint, {**POINT, "replicas": 2}))
    requests, iterations = tables["requests"], tables["iterations"]
    assert iterations.num_rows == metrics.iterations
    assert set(iterations["replica"].to_pylist()) == {0, 1}
    assert requests.num_rows == 120
    assert requests["completed_s"].null_count == 0
    ttft = requests["first_token_s"].to_numpy() - requests["arrival_s"].to_numpy()
    assert ttft.mean() == pytest.approx(metrics.ttft_mean_s)
    mean = iterations["requests"].to_numpy().mean()
    assert mean == pytest.approx(metrics.mean_batch)
    assert iterations["kv_blocks"].to_numpy().max() <= metrics.kv_blocks


def test_report_matches_the_load_test_format() -> None:
    text = LOAD_TESTS.report(POINT)
    metrics = simulate(point_from(ServingPoint, POINT))
    assert text.startswith("Load test of llama3_1_8b on 1 h100_sxm, vllm")
    assert f"{1e3 * metrics.tpot_p99_s:,.2f}" in text
    course = text.split("from s")[1].splitlines()[1:]
    arrived, answered = np.array([line.split()[1:3] for line in course], int).sum(axis=0)
    assert (arrived, answered) == (120, 120)


def test_analytic_fidelity_has_no_event_report() -> None:
    assert isinstance(SIMULATOR, Records)
    assert LOAD_TESTS.report({**POINT, "fidelity": "analytic"}) == ""
    with pytest.raises(UserError, match="no events"):
        SIMULATOR.records({**POINT, "fidelity": "analytic"})


def test_show_prints_the_report_and_writes_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sweeper.__main__ import main

    (tmp_path / "spaces").mkdir()
    axes = "\n".join(f"  {name}: {value}" for name, value in POINT.items())
    (tmp_path / "spaces" / "chats.yaml").write_text(
        f"simulator: serving\naxes:\n{axes}\nobjectives: {{ttft_p99_s: min}}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["+space=chats", "engine=inline", "plot=false"]) == 0
    assert main(["show", "chats", "knee", "--records", "events"]) == 0
    assert "Load test of llama3_1_8b" in capsys.readouterr().out
    assert pq.read_table(tmp_path / "events" / "requests.parquet").num_rows == 120
    assert pq.read_table(tmp_path / "events" / "iterations.parquet").num_rows > 100
