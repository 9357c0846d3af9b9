"""A picture of a sweep's results as PNG, SVG or PDF."""

from __future__ import annotations

from pathlib import Path

from simulators.core.errors import UserError, suggestion
from sweeper.commands.flags import flags
from sweeper.commands.record import latest
from sweeper.commands.report import content_of

_SUFFIXES = (".png", ".svg", ".pdf")


def main(words: list[str]) -> int:
    """Draw one picture."""
    parser = flags("plot", "a picture of a sweep's results")
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("kind", help="front, parallel, heat, curves, sensitivity or waterfall")
    parser.add_argument("file", help="where to; .png, .svg or .pdf")
    parser.add_argument("--x", metavar="COLUMN", help="across: an axis or a metric")
    parser.add_argument("--y", metavar="COLUMN", help="up: an axis or a metric")
    parser.add_argument("--of", metavar="METRIC", help="of heat: whose best value")
    parser.add_argument("--outputs", default="outputs")
    chosen = parser.parse_args(words)
    try:
        from sweeper import plots
    except ModuleNotFoundError as error:
        raise UserError('pictures need matplotlib: pip install "sweeper[viz]"') from error
    if chosen.kind not in plots.KINDS:
        raise UserError(
            f"there is no picture '{chosen.kind}'{suggestion(chosen.kind, plots.KINDS)}\n"
            f"Known: {', '.join(plots.KINDS)}"
        )
    file = Path(chosen.file)
    if file.suffix not in _SUFFIXES:
        raise UserError(f"{file}: write a file that ends in {', '.join(_SUFFIXES)}")
    content = content_of(chosen.name, latest(chosen.name, chosen.outputs), band=0.1)
    try:
        plots.KINDS[chosen.kind](content, file, x=chosen.x, y=chosen.y, of=chosen.of)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    print(file)
    return 0
