"""Pieces of HTML: escaped text, lists of words, tables that scroll, horizontal bars."""

from __future__ import annotations

import html
from collections.abc import Sequence


def escaped(text: object) -> str:
    """Return text as HTML shows it, whatever stands in it."""
    return html.escape(str(text))


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    words = [escaped(n) for n in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def scrolled(head: str, lines: Sequence[str]) -> str:
    """Return a table that scrolls within the page."""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def bars(
    found: Sequence[tuple[str, float, str]],
    whole: float,
    *,
    lost: frozenset[str] | set[str] = frozenset(),
) -> str:
    """Return horizontal bars: label, length, and the amount in words."""
    lines = []
    for label, amount, said in found:
        kind = "fill lost" if label in lost else "fill"
        width = f"{100 * amount / whole if whole else 0:.2f}%"
        lines.append(
            f'<span>{escaped(label)}</span><div class="track"><div class="{kind}" '
            f'style="width:{width}"></div></div><span class="amount">{escaped(said)}</span>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'
