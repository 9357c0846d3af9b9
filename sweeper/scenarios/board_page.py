"""The board of scenarios as one HTML page: what is answered, where figures lie in their bands.

A figure is drawn on its own scale: the band in which it is plausible as a block, its 90 % interval
as a line, its value as a dot. The page has no script and asks nothing of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweeper.report.browser import page as report
from sweeper.report.browser.markup import escaped
from sweeper.scenarios.board import (
    basis_of,
    by_measurements_of,
    figure_cells,
    in_short,
    misses_of,
    verdict_of,
)
from sweeper.scenarios.scenario import Figure, Outcome

CSS = Path(report.__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
WIDE, HIGH, MARGIN = 220.0, 18.0, 0.15
"""Of a drawing: pixels, and the share of its width left free at either side."""


def board_page(outcomes: Sequence[Outcome]) -> str:
    """Return the page."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Scenarios</title>\n<style>{CSS.read_text(encoding='utf-8')}</style>",
            f"</head>\n<body>\n<header><h1>Scenarios</h1><p>{escaped(in_short(outcomes))}</p>",
            '<p class="note">Block: plausible. Line: 90 % interval. Dot: the value.</p></header>',
            "<main>",
            *map(_section, outcomes),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _section(outcome: Outcome) -> str:
    """Return a scenario: its verdict and how sure it is, then its figures."""
    kind = "ok" if outcome.in_band else "missed"
    sure = f" · {by_measurements_of(outcome):.0%} by measurements" if outcome.supported else ""
    head = (
        f'<div class="head"><h2>{escaped(outcome.scenario.id)} '
        f'{escaped(outcome.scenario.title)}</h2><span class="{kind}">'
        f"{escaped(verdict_of(outcome))}{sure}</span></div>"
    )
    misses = "".join(f'<p class="note">{escaped(said)}</p>' for said in misses_of(outcome))
    rows = "".join(map(_row, outcome.figures))
    table = f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>' if rows else ""
    return f"<section>{head}{table}{misses}</section>"


def _row(figure: Figure) -> str:
    name, value, interval, band = figure_cells(figure)
    mark, why = "" if figure.in_band else ' class="missed"', escaped(basis_of(figure))
    return (
        f"<tr><td{mark}>{escaped(name)}</td><td>{escaped(value)}</td><td>{escaped(interval)}</td>"
        f'<td>{_drawing(figure)}</td><td title="{why}">{escaped(band)}</td></tr>'
    )


def _drawing(figure: Figure) -> str:
    """Return band, interval and value on one scale; nothing where there is nothing to compare."""
    band = figure.target.band
    ends: list[float] = [end for end in (figure.low, figure.high, *(band or ())) if end is not None]
    if not ends:
        return ""
    least, most = min([*ends, figure.value]), max([*ends, figure.value])
    span = (most - least) or max(abs(most), 1.0)

    def at(value: float) -> float:
        return WIDE * (MARGIN + (1.0 - 2.0 * MARGIN) * (value - least) / span)

    middle, parts = HIGH / 2.0, []
    if band:
        left, right = map(at, band)
        parts.append(
            f'<rect x="{left:.1f}" y="3" width="{max(right - left, 1.0):.1f}" '
            f'height="{HIGH - 6:.0f}" fill="var(--line)"/>'
        )
    if figure.low is not None and figure.high is not None:
        low, high = at(figure.low), at(figure.high)
        parts.append(
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" '
            'stroke="var(--front)" stroke-width="2"/>'
        )
    colour = "var(--front)" if figure.in_band else "var(--bad)"
    parts.append(f'<circle cx="{at(figure.value):.1f}" cy="{middle}" r="4" fill="{colour}"/>')
    said = f"{figure.target.name} and its band"
    return (
        f'<svg width="{WIDE:.0f}" height="{HIGH:.0f}" role="img" aria-label="{escaped(said)}">'
        f"{''.join(parts)}</svg>"
    )
