"""Results of every shipped space: printed at three widths, plotted and shown in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sweeper.__main__ import main
from tests.sweeper.conftest import SHIPPED

pytestmark = pytest.mark.slow
CANNOT = (
    ("buffer_resnet50", "a heat map needs two axes that vary"),
    ("clocks_llama70b", "a heat map needs two axes that vary"),
    ("edge_nas", "curves need an axis of numbers"),
    ("multicore_resnet50", "curves need an axis of numbers"),
)
"""Pictures that a space has not enough axes for."""
KINDS = ("front", "parallel", "heat", "curves", "sensitivity", "waterfall")
QUESTIONS = (
    "pareto {}",
    "query {} sensitivity",
    "query {} effects",
    "query {} near knee",
    "query {} likely --rows 5",
    "show {} knee",
)
FAULTS = """
const pixels = (c) => c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
const canvases = [...document.querySelectorAll("section:not([hidden]) canvas")];
const words = document.body.innerText.match(/NaN|undefined|\\[object|None\\b/g) || [];
return {
  blank: canvases.filter((c) => !pixels(c).some((v) => v)).map((c) => c.id),
  words,
  unchosen: [...document.querySelectorAll("#scenario select")].filter((box) => !box.value).length,
  beyond: Math.max(0, document.documentElement.scrollWidth - innerWidth),
};
"""


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("name", SHIPPED)
def test_tables_fit_the_terminal(
    name: str,
    columns: int,
    shipped: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for question in QUESTIONS:
        assert main([*question.format(name).split(), "--outputs", shipped]) == 0
        lines = capsys.readouterr().out.splitlines()
        if not question.startswith("show"):
            wide = [line for line in lines if len(line) > columns and len(line.split()) > 1]
            assert not wide, f"{question}: {wide}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_picture_is_drawn(
    name: str, kind: str, shipped: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"{kind}.png"
    if main(["report", name, "--plot", kind, "--file", str(file), "--outputs", shipped]) == 0:
        assert file.stat().st_size > 5_000
    else:
        assert (name, capsys.readouterr().err.strip().removeprefix("sweeper: ")) in CANNOT


@pytest.mark.parametrize("name", SHIPPED)
def test_report_page_renders_at_two_widths_and_themes(
    name: str, shipped: str, browser: Any, tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    file = tmp_path / "page.html"
    assert main(["report", name, "--outputs", shipped, "--file", str(file)]) == 0
    for width, height in ((1280, 900), (400, 800)):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(file.resolve().as_uri())
        WebDriverWait(browser, 30).until(
            lambda b: b.execute_script("return document.documentElement.dataset.ready") == "yes"
        )
        for theme in ("light", "dark"):
            browser.execute_script(f"theme('{theme}')")
            found = browser.execute_script(FAULTS)
            none = {"blank": [], "words": [], "unchosen": 0, "beyond": 0}
            assert found == none, (width, theme)
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


@pytest.mark.parametrize("name", SHIPPED)
def test_explorer_page_opens(name: str, shipped: str, browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    file = tmp_path / "page.html"
    assert main(["report", name, "--explore", "--outputs", shipped, "--file", str(file)]) == 0
    browser.get(file.resolve().as_uri())
    WebDriverWait(browser, 30).until(
        lambda b: b.execute_script("return document.documentElement.dataset.ready") == "yes"
    )
    assert browser.find_elements("css selector", "#front-table tbody tr")
    assert browser.find_elements("css selector", "#pivot-table tbody tr")
    assert browser.get_log("browser") == []
