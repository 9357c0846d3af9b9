"""Every metric is defined in `docs/explanation/`, under the heading that the metric names."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from simulators.core.contract import load_simulator
from simulators.core.folder import SIMULATORS
from tests.conftest import ROOT

METRICS = [
    (simulator, f.name, f.metadata["page"])
    for simulator in SIMULATORS.names()
    for kind in [load_simulator(simulator).metrics]
    for f in fields(kind)
    if f.name in kind.__annotations__  # those of a base class are on the page of its simulator
]
CODE = re.compile(r"^```.*?^```", re.S | re.M)
SECTION = re.compile(r"^(#+) (.+?)\n(.*?)(?=^#|\Z)", re.S | re.M)


def sections(page: str) -> dict[str, str]:
    """Return the text under each heading, by the name that links give the heading."""
    text = CODE.sub("", (ROOT / "docs" / "explanation" / page).read_text(encoding="utf-8"))
    named = {
        re.sub(r"[^\w\- ]", "", title).lower(): body for _, title, body in SECTION.findall(text)
    }
    return {title.replace(" ", "-"): body for title, body in named.items()}


def names(text: str) -> set[str]:
    """Return the names between backticks; `a_{b,c}` are two.

    >>> sorted(names("`ttft_{p50,p99}_s` and `mfu`"))
    ['mfu', 'ttft_p50_s', 'ttft_p99_s']
    """
    found, spelt = [*re.findall(r"`([\w{},]+)`", text)], set()
    for name in found:
        if match := re.search(r"\{([\w,]+)\}", name):
            found += [name.replace(match[0], word, 1) for word in match[1].split(",")]
        else:
            spelt.add(name)
    return spelt


@pytest.mark.parametrize(("simulator", "metric", "page"), METRICS)
def test_metric_is_defined_on_its_page(simulator: str, metric: str, page: str) -> None:
    file, _, heading = page.partition("#")
    assert file == f"{simulator}.md"
    assert metric in names(sections(file).get(heading, "")), (
        f"docs/explanation/{page} does not define it"
    )


HEADINGS = ["Model", "Assumptions", "Equations", "Metrics", "Limitations", "Accuracy"]
LONGEST_PAGE, MOST_ENTRIES = 500, 60


@pytest.mark.parametrize("simulator", [*SIMULATORS.names(), "graphs"])
def test_simulator_pages_have_the_same_headings(simulator: str) -> None:
    text = (ROOT / "docs" / "explanation" / f"{simulator}.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", CODE.sub("", text), re.M) == HEADINGS


def test_no_page_is_longer_than_500_lines() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[!r]*/*.md")]
    counts = {page.name: len(page.read_text(encoding="utf-8").splitlines()) for page in pages}
    generated = {"accuracy.md", "calibrations.md", "coverage.md"}
    assert {p: n for p, n in counts.items() if n > LONGEST_PAGE and p not in generated} == {}


def test_changelog_has_at_most_sixty_entries() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^- ", text, re.M)) <= MOST_ENTRIES
    assert re.findall(r"^### (.+)$", text, re.M) == ["Added", "Changed", "Fixed"]
