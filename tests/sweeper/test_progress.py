"""The progress display of a sweep; piped output is plain lines."""

from __future__ import annotations

import io
import json
import threading
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sweeper.__main__ import main
from sweeper.report import progress as progress_module
from sweeper.report.progress import Progress, shown
from sweeper.store.store import Part
from tests.toys import QUADRATIC, TROUBLE, space, sweep

OBJECTIVES: dict[str, Any] = {"cost_usd": "min", "gain": "max"}


def part(*vectors: tuple[float, float], **rows: int) -> Part:
    front = np.array(vectors, np.float64).reshape(-1, 2)
    reasons = {f"why_{status}": n for status, n in rows.items() if status != "ok"}
    return Part("p", sum(rows.values()), rows, reasons, front, seconds=0.5)


def watched(*parts: Part, total: int = 10) -> Progress:
    progress = Progress(total, OBJECTIVES)
    for each in parts:
        progress.add(each)
    return progress


def test_progress_line_counts_completed_points() -> None:
    progress = watched(part((1.0, 1.0), ok=3), part((2.0, 5.0), (3.0, 4.0), ok=2, infeasible=1))
    assert progress.line() == (
        "6 of 10 designs done · estimating time left · front 2 · infeasible 1 · (why infeasible 1)"
    )


def test_finished_progress_has_no_remaining_points() -> None:
    assert " · done · " in watched(part((1.0, 1.0), ok=10)).line()
    assert "0 of 10 designs done" in watched().line()


def test_reused_points_are_reported_separately() -> None:
    progress = Progress(4, OBJECTIVES, answered=1500)
    progress.add(part((1.0, 1.0), ok=4))
    assert progress.line() == "4 of 4 designs done · done · front 1 · 1,500 stored before"


def test_progress_line_fits_the_terminal_width() -> None:
    progress = watched(part((1.0, 1.0), ok=3, infeasible=2))
    assert progress.line(50) == "5 of 10 designs done · estimating time left"
    assert progress.line(10) == "5 of 10 designs done"


def test_remaining_time_uses_the_recent_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    progress = Progress(10_100, OBJECTIVES, started=0.0)
    for seconds, points in ((60.0, 1), (61.0, 1), (62.0, 8), (63.0, 90)):  # a minute of compiling
        now[0] = seconds
        progress.add(part((1.0, 1.0), ok=points))
    now[0] = 64.0
    progress.add(part((1.0, 1.0), ok=1000))
    assert "about 25 s left" in progress.line()  # (1,100 - 2) points in the last three seconds
    assert "366/s" in progress.line()


def test_time_left_is_steady_for_unequal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    errors = []
    for seed in range(20):
        now[0], random = 0.0, np.random.default_rng(seed)
        progress, ends_s = Progress(10_000, OBJECTIVES, started=0.0), list[float]()
        for _ in range(100):
            now[0] += random.choice([1.0, 11.0])  # seconds of a part of a hundred points
            progress.add(part(ok=100))
            if rate := progress._rate():
                ends_s.append(now[0] + (progress.total - progress.done) / rate)
        errors.append(max(abs(end_s / now[0] - 1.0) for end_s in ends_s[10:]))
    assert np.mean(errors) < 0.4


def test_live_front_equals_the_front_of_all_parts() -> None:
    progress = watched(
        part((2.0, 2.0), ok=1), part((1.0, 2.0), ok=1), part((1.0, 2.0), (0.5, 1.0), ok=2)
    )
    assert progress.front().tolist() == [[1.0, 2.0], [0.5, 1.0]]


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_parts_may_arrive_during_a_redraw() -> None:
    progress = Progress(10**6, OBJECTIVES)
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            progress.line()

    thread = threading.Thread(target=draw)
    thread.start()
    for i in range(2000):
        progress.add(part((float(i), float(i)), ok=1))
    stop.set()
    thread.join()
    assert len(progress.front()) == 2000


def test_piped_progress_has_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_LINE_S", 0.0)
    stream = io.StringIO()
    asked = space(TROUBLE, {"n": "0..40", "raises": 3, "dies": 7})
    task = sweep(tmp_path, asked)
    with shown(Progress(len(asked), task.objectives), stream) as display:
        task.run(display.watch, display.say)
    text = stream.getvalue()
    assert text.splitlines()[0] == "running in this process (no per-design time limit)"
    assert "error 1 · infeasible 1" in text
    assert not [c for c in text if unicodedata.category(c) == "Cc" and c != "\n"]


def test_terminal_progress_is_redrawn_in_place(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    task = sweep(tmp_path, space(QUADRATIC, {"x": "1..9"}))
    with shown(Progress(9, task.objectives), stream) as display:
        task.run(display.watch, display.say)
    assert "\x1b[" in stream.getvalue()
    assert "running in this process (no per-design time limit)" in stream.getvalue()


def test_a_search_ends_at_its_total(workplace: Path) -> None:
    words = "ask --model llama3_1_8b --gpu h100_sxm --gpus 8 --qps 20 --requests 40 --engine vllm"
    main([*words.split(), "--run-with", "inline"])
    [file] = Path("outputs").glob("ask_*/runs/*/progress.json")
    ended = json.loads(file.read_text())
    assert ended["to_do"] == sum(ended["rows"].values()) > 0
