"""A running sweep is watched in a terminal, as JSON and in a browser."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sweeper.__main__ import main
from sweeper.report.answers import latest
from sweeper.report.browser.page import live
from sweeper.report.progress import Watch, state
from sweeper.store.store import alone
from sweeper.sweep import Sweep
from tests.faults.machines import rows, start

SPACE = "simulator: tests.toys.counting\naxes: {n: 0..199, log: log.txt, pause_s: PAUSE}\n"


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "a%b.yaml").write_text(SPACE.replace("PAUSE", "0"))
    words = ["+space=a%b", "space.where=half > 9", "space.axes.n=0..19", "plot=false"]
    assert main([*words, "engine=inline"]) == 0
    return tmp_path


def test_progress_from_files_equals_driver_progress(ended: Path) -> None:
    watch = Watch(latest("a%b", "outputs"))
    assert watch.look() == 2
    assert watch.look() == 0
    watched = json.loads(state(watch))
    assert watched["points"] == watched["rows"]["ok"] == 20
    assert watched["ended"]
    front = watch.answers.front
    assert sorted(d["hashed"] for d in watched["front"]) == sorted(front["hashed"].to_list())


def test_watch_page_is_escaped_and_ends_with_the_sweep(ended: Path) -> None:
    watch = Watch(latest("a%b", "outputs"))
    watch.look()
    text = live(watch, 2.0, "ended")
    assert "<h1>a%b</h1>" in text
    other = Watch(dataclasses.replace(watch.answers, name="<script>"))
    assert "<h1>&lt;script&gt;</h1>" in live(other, 2.0, "ended")
    assert 'http-equiv="refresh"' not in text
    assert text.count("<circle") == len(watch.answers.front)
    (watch.answers.folder / "summary.json").unlink()
    (watch.answers.folder / "progress.json").unlink()
    with alone(watch.answers.store):
        assert not watch.stopped
    assert watch.stopped
    assert 'http-equiv="refresh" content="2"' in live(watch, 2.0, "")


def test_watch_ends_with_the_sweep(ended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "a%b", "--page", "live.html"]) == 0
    assert "20 of 20 designs done · done" in capsys.readouterr().out
    assert "20 of 20 points; ended" in Path("live.html").read_text()
    assert main(["watch", "a%b", "--json"]) == 0
    assert main(["watch", "nothing"]) == 2


def test_watch_does_not_count_reused_points(ended: Path) -> None:
    words = ["+space=a%b", "space.where=half > 9", "space.axes.n=0..29", "plot=false"]
    assert main([*words, "engine=inline"]) == 0
    watch = Watch(latest("a%b", "outputs"))
    watch.look()
    assert watch.progress.line().startswith("10 of 10 designs done · done")
    assert "20 stored before" in watch.progress.line()
    best = watch.answers.front["hashed"].to_list()
    assert sorted(set(watch.progress.front()[:, 0].tolist())) == sorted(set(best))


def test_watch_ends_with_an_interrupted_sweep(
    ended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sweep, "run", stop)
    words = ["+space=a%b", "space.axes.n=0..29", "plot=false", "engine=inline"]
    assert main(words) == 130
    assert main(["watch", "a%b"]) == 0
    assert "the same command resumes" in capsys.readouterr().out


@pytest.mark.slow
def test_watch_page_updates_in_a_browser(tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    from tests.faults.machines import command

    running = start(tmp_path, SPACE.replace("PAUSE", "0.1"), "engine=inline")
    running.until(lambda: list(tmp_path.glob("outputs/toy/results/*/*.parquet")))
    watching = command(tmp_path, "watch", "toy", "--page", "live.html", "--every", "1")
    page = tmp_path / "live.html"
    watching.until(page.exists)
    browser.get(page.resolve().as_uri())

    def done() -> int:
        bar = browser.find_element("tag name", "progress")
        return int(float(bar.get_attribute("value")))

    first = done()
    assert first < 200
    WebDriverWait(browser, 60, ignored_exceptions=[Exception]).until(lambda _: done() > first)
    assert running.wait() == 0
    assert watching.wait() == 0, watching.text()
    WebDriverWait(browser, 60, ignored_exceptions=[Exception]).until(lambda _: done() == 200)
    assert browser.find_elements("tag name", "circle")
    assert len(rows(tmp_path)) == 200
