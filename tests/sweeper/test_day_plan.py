"""Plans over a day: needs of loads, start-up and cool-down, and refused files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planning.day import read_day, with_peak
from planning.flags.serving import ServingFlags
from simulators.core.errors import UserError
from sweeper.commands.ask.question import main
from sweeper.query.day_plan import by_minute, running


def test_replica_runs_from_its_start_to_the_end_of_its_cool_down() -> None:
    needs = by_minute([0.0, 8.0, 20.0], [1, 4, 1])
    runs = running(needs, 300.0, 600.0)
    changes = np.flatnonzero(np.diff(runs)) + 1
    assert changes.tolist() == [8 * 60 - 5, 20 * 60 + 10]


def test_dip_shorter_than_the_cool_down_stops_nothing() -> None:
    needs = by_minute([0.0, 10.0, 10.25], [3, 1, 3])
    assert (running(needs, 0.0, 1800.0) == 3).all()


def test_days_repeat_at_midnight() -> None:
    needs = by_minute([0.0, 1.0], [5, 2])
    assert running(needs, 600.0, 0.0)[-10:].tolist() == [5] * 10


def day_file(folder: Path, text: str) -> Path:
    file = folder / "day.csv"
    file.write_text(f"hour,qps\n{text}", encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,4\n", "first hour must be 0"),
        ("0,4\n6,5\n6,7\n", "ascend"),
        ("0,4\n25,5\n", "ascend"),
        ("0,0\n", "above 0"),
        ("0,4\n6,many\n", "line 3: qps is 'many'; write a number"),
    ],
)
def test_file_that_is_no_day_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        read_day(day_file(tmp_path, text))


def test_day_asks_about_its_peak(tmp_path: Path) -> None:
    file = str(day_file(tmp_path, "0,4\n6,30\n"))
    flags, day = with_peak(ServingFlags(model="a", gpu="b", traffic=file))
    assert flags.qps == 30.0
    assert day is not None
    assert day.loads == (4.0, 30.0)
    with pytest.raises(UserError, match="leave out --qps"):
        with_peak(ServingFlags(model="a", gpu="b", traffic=file, qps=3.0))
    with pytest.raises(UserError, match="needs the load of a day"):
        with_peak(ServingFlags(model="a", gpu="b", max_replicas=3))


@pytest.mark.slow
def test_plan_of_a_day_costs_less_than_its_peak_all_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(day_file(tmp_path, "0,4\n8,60\n16,4\n"))
    words = ["--model", "llama3_1_8b", "--gpu", "h100_sxm", "--gpus", "8", "--requests", "300"]
    words += ["--traffic", file, "--outputs", str(tmp_path), "--run-with", "inline", "--json"]
    assert main(words) == 0
    day = json.loads(capsys.readouterr().out)["day"]
    night, peak, evening = (one["replicas"] for one in day["hours"])
    assert night == evening < peak
    assert day["device_hours_per_day"] < day["static_device_hours_per_day"]
    assert main([*words, "--max-replicas", str(peak), "--min-replicas", str(peak)]) == 0
    flat = json.loads(capsys.readouterr().out)["day"]
    assert flat["device_hours_per_day"] == flat["static_device_hours_per_day"]
    with pytest.raises(UserError, match="more than --max-replicas"):
        main([*words, "--max-replicas", str(peak - 1)])
