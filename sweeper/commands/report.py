"""The command `report`: write a sweep as one HTML page or as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from simulators.core.errors import UserError, unknown
from sweeper.commands.flags import add_words, at_least, results_flags
from sweeper.commands.opened import add_scenarios, opened
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
    parser = results_flags("report")
    add_scenarios(parser)
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="output file (default: in the folder of the run)"
    )
    parser.add_argument("--rows", type=at_least(1), default=MOST, help="most rows of the page")
    parser.add_argument(
        "--band",
        type=float,
        default=0.1,
        help="half-width of the 90 %% prediction interval if none is stated (0.1: 10 %%)",
    )
    picture = parser.add_argument_group("a picture instead of the page")
    add_words(picture, "--plot", PICTURES, metavar="KIND", help=", ".join(PICTURES))
    picture.add_argument("--x", metavar="COLUMN", help="horizontal: an axis or a metric")
    picture.add_argument("--y", metavar="COLUMN", help="vertical: an axis or a metric")
    picture.add_argument("--of", metavar="METRIC", help="colour, or the metric of a heat map")
    chosen = parser.parse_args(words)
    last = opened(chosen)
    last = last.across(chosen.across) if chosen.across else last
    if last.front.is_empty():
        raise UserError(f"no design of '{last.name}' qualifies, so there is nothing to report")
    if chosen.plot:
        file = chosen.file or last.folder / f"{chosen.plot}.png"
        _plot(last, chosen, file)
        print(file)
        return 0
    text = page(content_of(last, band=chosen.band), rows=chosen.rows)
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
