"""The report of a sweep: one file, no network access, rendered in a browser."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from simulators.core.checks import COVERAGE, PARITY, Check
from sweeper.__main__ import main
from sweeper.commands.report import content_of
from sweeper.report.answers import latest
from sweeper.report.browser.page import encoded, packed, page
from sweeper.report.evidence import Evidence

SPACE = """\
# Where is it best, <b>here</b> or there?
simulator: tests.toys.quadratic
axes: {x: 0..9, y: 0.5..4 log 8, n: [1, 2, 13]}
derived: {twice: "x * 2"}
constraints: ["x + y < 12"]
where: whole < 90
"""
BLANK = """
const drawn = (c) => c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some((v) => v);
const shown = [...document.querySelectorAll("section:not([hidden]) canvas")];
return shown.filter((c) => !drawn(c)).map((c) => c.id);
"""
TICKS = """
return ["front-x", "front-y"].map((id) => marks(zoomed(picked(id), shows), 5).length);
"""
SORTED = """
const button = document.querySelector("#table button[data-sort=cost_usd]");
button.click();
const column = button.closest("th").cellIndex;
const rows = [...document.querySelectorAll("#table tbody tr")];
const values = rows.map((row) => Number(row.cells[column].dataset.value));
const sorted = values.every((value, i) => !i || values[i - 1] <= value);
return [button.closest("th").getAttribute("aria-sort"), sorted];
"""

CHOSEN = """
const box = document.querySelector("#scenario select");
box.value = arguments[0];
box.dispatchEvent(new Event("change"));
const all = (words) => [...document.querySelectorAll(words)].filter((one) => one.checkVisibility());
const seen = (words) => all(words).map((one) => one.textContent);
return [seen("#answer .says"), seen("#table tbody code").join() === meta.keys.join()];
"""


@pytest.fixture
def swept(workplace: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder in which a small sweep has been run."""
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(SPACE)
    assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    return workplace


def read(text: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the metadata and decoded columns of a report page."""
    meta = json.loads(re.search(r'id="meta"[^>]*>(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    data = re.search(r'id="data"[^>]*>(.*?)</script>', text, re.S)[1]  # type: ignore[index]
    raw = np.frombuffer(zlib.decompress(base64.b64decode(data)), np.uint8)
    planes = raw.reshape(-1, 2, meta["rows"]).astype(int)
    columns = {}
    for described, (low, high) in zip(meta["columns"], planes, strict=True):
        codes = low + 256 * high
        if "levels" in described:
            levels = [*described["levels"]]
            columns[described["name"]] = [None if c == 65535 else levels[c] for c in codes]
        else:
            lo, hi = described["low"], described["high"]
            steps = lo + codes / 65534 * (hi - lo)
            columns[described["name"]] = list(np.exp(steps) if described["log"] else steps)
    return meta, columns


def test_report_columns_survive_encoding() -> None:
    random = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "name": ["b", None, "a"] * 1000,
            "flag": [True, False, None] * 1000,
            "few": [1.5, float("nan"), -2.0] * 1000,
            "many": np.exp(random.normal(size=3000)),
            "wide": random.normal(size=3000),
        }
    )
    columns = [encoded(table[n], role="metric") for n in table.columns]
    meta = json.dumps({"rows": 3000, "columns": [c.described() for c in columns]})
    text = f'<script id="meta">{meta}</script><script id="data">{packed(columns)}</script>'
    _, back = read(text)
    assert back["name"] == table["name"].to_list()
    assert back["flag"] == table["flag"].to_list()
    assert back["few"][:3] == [1.5, None, -2.0]
    np.testing.assert_allclose(back["many"], table["many"], rtol=1e-4)
    np.testing.assert_allclose(back["wide"], table["wide"], atol=1e-4)


def test_report_is_one_self_contained_page(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "toy", "--file", "page.html"]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    text = Path("page.html").read_text()
    assert "Where is it best, &lt;b&gt;here&lt;/b&gt; or there?" in text
    assert not re.search(r"(src|href)=[\"'](?!data:)", text)
    assert "http" not in text.split("<body>")[0].replace("http-equiv", "")
    meta, columns = read(text)
    last = latest("toy", "outputs")
    good = last.store.scan().filter(pl.col("status").cast(pl.String) == "ok").collect()
    assert meta["rows"] == len(good)
    assert sorted(columns["cost_usd"]) == pytest.approx(sorted(good["cost_usd"]), rel=1e-3)
    assert meta["keys"][meta["chosen"]] in text.split("<main>")[1].split('id="front"')[0]
    for said in ("x + y &lt; 12", "unlucky", "with whole &lt; 90", "on the front"):
        assert said in text


def test_large_sweep_report_holds_front_and_sample(swept: Path) -> None:
    content = content_of(latest("toy", "outputs"), band=0.1)
    text = page(content, rows=40)
    meta, _ = read(text)
    assert meta["front"] == len(content.answers.front)
    assert len(content.answers.front) <= meta["rows"] <= 40 + len(content.answers.front)
    assert "the front and an even sample" in text


def test_report_requires_a_front(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (swept / "spaces" / "toy.yaml").write_text(SPACE.replace("whole < 90", "whole < 0"))
    assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    assert main(["report", "toy"]) == 2
    assert "no design of 'toy' qualifies" in capsys.readouterr().err


def test_report_summarizes_evidence() -> None:
    checks = (Check("a", 1.0, ok=True), Check("b", 2.0, ok=False), Check("c", 3.0))
    said = Evidence(("kernels",), {"kernels": checks}).in_short()
    assert said == "1 of 2 accuracy checks pass."


def test_coverage_and_parity_are_not_counted_among_errors() -> None:
    checks = (
        Check("a", 1.0, ok=True),
        Check("equal", 100.0, ok=True, kind=PARITY),
        Check("held", 90.0, limit=85.0, ok=True, kind=COVERAGE),
        Check("wide", 99.0, limit=85.0, ok=False, kind=COVERAGE),
        Check("narrow", 70.0, limit=85.0, ok=False, kind=COVERAGE),
    )
    said = Evidence(("kernels",), {"kernels": checks}).in_short()
    assert said.startswith("1 of 1 accuracy checks")
    assert said.endswith("1 of 3 interval types are well calibrated (1 too wide, 1 too narrow).")


def opened(browser: Any, file: Path) -> None:
    """Open a page and wait for its pictures."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(file.resolve().as_uri())
    WebDriverWait(browser, 20).until(
        lambda b: b.execute_script("return document.documentElement.dataset.ready") == "yes"
    )


@pytest.mark.slow
def test_report_works_in_a_browser(swept: Path, browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    assert main(["report", "toy", "--file", "page.html"]) == 0
    assert Path("page.html").stat().st_size < 3_000_000
    opened(browser, swept / "page.html")
    answer = browser.find_element("id", "answer")
    assert answer.rect["y"] + answer.rect["height"] < 768
    assert browser.execute_script(BLANK) == []
    canvas = browser.find_element("id", "front-canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = browser.execute_script("return [dots.px[meta.chosen], dots.py[meta.chosen]]")
    size = canvas.size
    here = (int(x - size["width"] / 2), int(y - size["height"] / 2))
    ActionChains(browser).move_to_element_with_offset(canvas, *here).perform()
    assert "on the front" in browser.find_element("id", "tip").text
    before = browser.execute_script("return selected.reduce((a, b) => a + b)")
    corner = (here[0] - 30, here[1] + 30)
    drag = ActionChains(browser).move_to_element_with_offset(canvas, *corner)
    drag.click_and_hold().move_by_offset(80, -80).release().perform()
    after = browser.execute_script("return selected.reduce((a, b) => a + b)")
    assert 0 < after < before
    assert min(browser.execute_script(TICKS)) >= 2, "a selected range has its ticks"
    browser.find_element("id", "clear").click()
    assert browser.execute_script("return selected.reduce((a, b) => a + b)") == before
    assert browser.execute_script(SORTED) == ["ascending", True]
    assert not browser.execute_script("return byId('front-all').checked")
    browser.find_element("id", "theme").click()
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_report_offers_a_choice_of_scenarios(swept: Path, browser: Any) -> None:
    (swept / "spaces" / "toy.yaml").write_text(f"{SPACE}given: [n]\n")
    assert main(["+space=toy", "plot=false", "engine=inline"]) == 0
    assert main(["report", "toy", "--file", "page.html"]) == 0
    opened(browser, swept / "page.html")
    for value in ("2", "1"):
        said, table_is_theirs = browser.execute_script(CHOSEN, value)
        assert [words.split(":")[0] for words in said] == [f"For n {value}"]
        assert table_is_theirs
        assert browser.execute_script(BLANK) == []
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
