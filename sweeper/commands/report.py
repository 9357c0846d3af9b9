"""A sweep as one HTML page that opens anywhere, or as a picture."""

from __future__ import annotations

from pathlib import Path

from simulators.core.errors import UserError, unknown
from sweeper.commands.flags import at_least, results_flags
from sweeper.commands.opened import add_scenarios, opened
from sweeper.report.answers import Answers
from sweeper.report.browser.content import Content
from sweeper.report.browser.page import MOST, page
from sweeper.report.evidence import evidence
from sweeper.report.tables import write_text
from sweeper.space.shipped_files import spaces
from sweeper.space.space_file import about

_SUFFIXES = (".png", ".svg", ".pdf")


def main(words: list[str]) -> int:
    """Write the page."""
    parser = results_flags("report", "one self-contained HTML page of a sweep's results")
    add_scenarios(parser)
    parser.add_argument("--file", metavar="FILE", help="default: report.html beside the run")
    parser.add_argument(
        "--rows", type=at_least(1), default=MOST, help="rows the page carries at most"
    )
    parser.add_argument(
        "--band",
        type=float,
        default=0.1,
        help="half the 90 %% interval of an objective whose simulator states none (0.1: 10 %%)",
    )
    chosen = parser.parse_args(words)
    last = opened(chosen)
    last = last.across(chosen.across) if chosen.across else last
    content = content_of(last, band=chosen.band)
    text = page(content, rows=chosen.rows)
    file = Path(chosen.file) if chosen.file else content.answers.folder / "report.html"
    write_text(file, text)
    print(f"{file}  ({len(text.encode()) / 1e6:.2f} MB; open it in a browser)")
    return 0


def content_of(last: Answers, *, band: float) -> Content:
    """Return what a report says of the last run of a space, in full of one of its scenarios."""
    _check_front(last)
    asked = last.folder.parents[2] / "spaces" / f"{last.name}.yaml"  # what `ask` wrote
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


def plot(words: list[str]) -> int:
    """Draw one picture."""
    parser = results_flags("plot", "a picture of a sweep's results")
    parser.add_argument("kind", help="front, parallel, heat, curves, sensitivity or waterfall")
    parser.add_argument("file", help="where to; .png, .svg or .pdf")
    parser.add_argument("--x", metavar="COLUMN", help="across: an axis or a metric")
    parser.add_argument("--y", metavar="COLUMN", help="up: an axis or a metric")
    parser.add_argument("--of", metavar="METRIC", help="of heat: whose best value")
    add_scenarios(parser)
    chosen = parser.parse_args(words)
    try:
        from sweeper.report import plots  # matplotlib is an extra
    except ModuleNotFoundError as error:
        raise UserError('pictures need matplotlib: pip install "sweeper[viz]"') from error
    if chosen.kind not in plots.KINDS:
        raise unknown(f"there is no picture '{chosen.kind}'", chosen.kind, plots.KINDS)
    file = Path(chosen.file)
    if file.suffix not in _SUFFIXES:
        raise UserError(f"{file}: write a file that ends in {', '.join(_SUFFIXES)}")
    last = opened(chosen)
    last = last.across(chosen.across) if chosen.across else last
    _check_front(last)
    try:
        plots.draw(chosen.kind, last.usual, file, plots.Columns(chosen.x, chosen.y, chosen.of))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    print(file)
    return 0


def _check_front(last: Answers) -> None:
    if last.front.is_empty():
        raise UserError(
            f"no feasible design of '{last.name}' qualifies, so there is nothing to report"
        )
