"""The command `report`: write a sweep as one HTML page or as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulators.core.errors import UserError, unknown
from sweeper.commands.flags import parse
from sweeper.commands.opened import opened
from sweeper.extras import load_extra
from sweeper.report.answers import Answers
from sweeper.report.browser.content import Content
from sweeper.report.browser.page import MOST, page
from sweeper.report.evidence import evidence
from sweeper.report.tables import write_text
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import about

_SUFFIXES = (".png", ".svg", ".pdf")
PICTURES = ("front", "parallel", "heat", "curves", "sensitivity", "waterfall")


def main(words: list[str]) -> int:
    """Write the page, or a picture."""
    chosen = parse("report", words, plot=PICTURES)
    last = opened(chosen)
    last = last.across(chosen.across) if chosen.across else last
    if last.front.is_empty():
        raise UserError(f"no design of '{last.name}' qualifies, so there is nothing to report")
    if chosen.plot:
        file = chosen.file or last.folder / f"{chosen.plot}.png"
        _plot(last, chosen, file)
        print(file)
        return 0
    text = page(content_of(last, band=chosen.band), rows=chosen.rows or MOST)
    file = chosen.file or last.folder / "report.html"
    write_text(file, text)
    print(f"{file}  ({len(text.encode()) / 1e6:.2f} MB; open it in a browser)")
    return 0


def _plot(last: Answers, chosen: argparse.Namespace, file: Path) -> None:
    """Draw one picture."""
    if chosen.plot not in PICTURES:
        raise unknown(f"there is no picture '{chosen.plot}'", chosen.plot, PICTURES)
    if file.suffix not in _SUFFIXES:
        raise UserError(f"{file}: write a file that ends in {', '.join(_SUFFIXES)}")
    load_extra("matplotlib", "a picture", "viz")
    from sweeper.report import plots

    try:
        plots.draw(chosen.plot, last.usual, file, plots.Columns(chosen.x, chosen.y, chosen.of))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error


def content_of(last: Answers, *, band: float) -> Content:
    """Return the content of the report on a run."""
    asked = last.folder.parents[2] / "spaces" / f"{last.name}.yaml"  # written by `ask`
    file = spaces().get(last.name) or (asked if asked.is_file() else None)
    text = about(file) if file else ""
    question = text[: text.index("?") + 1] if "?" in text else text
    return Content(
        last.usual,
        question or f"Which design of {last.name}?",
        evidence(last.space.simulator),
        band,
        last,
    )
