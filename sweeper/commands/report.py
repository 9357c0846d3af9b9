"""The command `report`: a sweep as a page, as an explorer page, or as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simulators.core.errors import UserError, unknown
from sweeper.commands.explorer import explorer_file
from sweeper.commands.flags import parse, values_of
from sweeper.commands.query import opened
from sweeper.extras import load_extra
from sweeper.report.answers import Answers, latest
from sweeper.report.browser.content import Content
from sweeper.report.browser.page import MOST, page
from sweeper.report.evidence import evidence
from sweeper.report.tables import write_text
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import about

_SUFFIXES = (".png", ".svg", ".pdf")
PICTURES = values_of("report", "--plot")


def report(words: list[str]) -> int:
    """Write the page, or a picture."""
    chosen = parse("report", words)
    last = opened(chosen)
    last = (last.across(chosen.across) if chosen.across else last).loaded
    if last.front.is_empty():
        raise UserError(f"no design of '{last.name}' qualifies, so there is nothing to report")
    if chosen.plot:
        file = chosen.file or last.folder / f"{chosen.plot}.png"
        _draw(last, chosen, file)
        print(file)
        return 0
    if chosen.against and not chosen.explore:
        raise UserError("--against draws a second sweep on the explorer page: add --explore")
    if chosen.explore:
        other = latest(chosen.against, chosen.outputs) if chosen.against else None
        text, name = explorer_file(last, other, chosen.rows), "explorer.html"
    else:
        content = content_of(last, band=chosen.band)
        _prepare(content.views)
        text, name = page(content, rows=chosen.rows or MOST), "report.html"
    file = chosen.file or last.folder / name
    write_text(file, text)
    print(f"{file}  ({len(text.encode()) / 1e6:.2f} MB; open it in a browser)")
    return 0


def _prepare(views: Sequence[Content]) -> None:
    """Compute what takes time in a report, and print the progress on standard error."""
    end = "\r" if sys.stderr.isatty() else "\n"
    for done, view in enumerate(views, 1):
        if end == "\r" or done == 1:
            print(f"scenario {done} of {len(views)}", end=end, file=sys.stderr, flush=True)
        assert view.p_front
        assert view.evidence_of_time is not None


def _draw(last: Answers, chosen: argparse.Namespace, file: Path) -> None:
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
