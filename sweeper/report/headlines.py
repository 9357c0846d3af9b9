"""What is claimed in one table: figures of `validate` beside a peer's, and what either was given.

`headlines.toml` names the lines of `validate` behind each claim and says in a sentence
what was known and how rows were split. All figures come from the checks that travel with the
package, so the table is the same wherever it stands: README, `docs/accuracy.md`, `ask`, reports.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from simulators.core.contract import COVERAGE, ERROR, PARITY, Check
from simulators.core.folder import PACKAGES
from sweeper.report.evidence import Evidence, evidence
from sweeper.report.tables import write_text

FILE = Path(__file__).with_suffix(".toml")
README = PACKAGES / "README.md"
START, END = "<!-- headlines: `validate --write` -->", "<!-- end of headlines -->"
HEAD = ("claim", "ours", "a peer's", "rows", "what was known, and how rows were split")
NONE = "-"

Known = Mapping[str, Sequence[Check]]
"""Checks by room."""


@dataclass(frozen=True)
class Headline:
    """A claim: lines of `validate` by what the table calls them, and a sentence about them.

    Args:
        room: whose lines they are.
        claim: what they are errors, shares or counts of.
        lines: what the table calls a line, and its name; one with `*` stands for all it matches.
        said: what we and the peer were given, and how rows were split.
        peer: who else answers the same rows.
    """

    room: str
    claim: str
    lines: Sequence[tuple[str, str]]
    said: str
    peer: str = ""

    def found(self, known: Known) -> list[tuple[str, list[Check]]]:
        """Return the lines that have a value, by what the table calls them."""
        valued = [check for check in known.get(self.room, ()) if check.value is not None]
        return [
            (label, [c for c in valued if c.name == name or fnmatchcase(c.name, name)])
            for label, name in self.lines
        ]

    def cells(self, known: Known) -> tuple[str, ...]:
        """Return the cells of its row of the table."""
        found = self.found(known)
        ours = [f"{label} {_together(checks)}".strip() for label, checks in found]
        theirs = [
            f"{label} {_rounded(checks[0].peer, checks[0].unit)}".strip()
            for label, checks in found
            if checks and checks[0].peer is not None
        ]
        counts = [f"{sum(c.rows for c in checks):,}" for _, checks in found]
        return (
            f"{self.room}: {self.claim}",
            "; ".join(ours),
            f"{self.peer}: {'; '.join(theirs)}" if theirs else NONE,
            "; ".join(dict.fromkeys(count for count in counts if count != "0")) or NONE,
            self.said,
        )

    def in_words(self, known: Known) -> str:
        """Return its figures in one sentence."""
        _, ours, theirs, rows, _ = self.cells(known)
        beside = "" if theirs == NONE else f". {theirs}"
        return f"{self.claim[:1].upper()}{self.claim[1:]}, {rows} rows: {ours}{beside}."


def headlines() -> list[Headline]:
    """Return what is claimed, what matters most first."""
    with FILE.open("rb") as stream:
        return [Headline(**one) for one in tomllib.load(stream)["headlines"]]


def headlines_of(evidence: Evidence) -> list[Headline]:
    """Return what is claimed of the rooms that a simulator stands on, its own first."""
    return [h for room in evidence.rooms for h in headlines() if h.room == room]


def table(known: Known) -> str:
    """Return the claims as a Markdown table, each figure of a cell on a line of its own.

    A claim of which no line has been computed yet is not in it.
    """
    told = [one for one in headlines() if any(checks for _, checks in one.found(known))]
    cells = [[cell.replace("|", "/") for cell in one.cells(known)] for one in told]
    lines = [
        (name, *(c.replace("; ", "<br>") for c in figures), said) for name, *figures, said in cells
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [HEAD, ("---",) * len(HEAD), *lines])


def missed(known: Known) -> str:
    """Return which errors against measurements miss their limits: a count that unfolds."""
    lines = [
        f"- {check.name.removeprefix(f'{room}/')} {_figure(check)}"
        for room, checks in known.items()
        for check in checks
        if check.ok is False and check.kind == ERROR
    ]
    if not lines:
        return ""
    head = f"<details><summary>All {len(lines)} errors beyond their limits</summary>"
    return "\n".join([head, "", *lines, "", "</details>"])


def claims(known: Known) -> str:
    """Return the table, and what misses its limit, as Markdown."""
    return "\n\n".join(text for text in (table(known), missed(known)) if text)


def page(known: Known, command: str) -> str:
    """Return the table and all lines of all rooms as one page of Markdown."""
    pages = [f"# Accuracy\n\nWritten by `{command}`, on rows outside the fits.", claims(known)]
    return "\n\n".join([*pages, *of_rooms(known)]) + "\n"


def of_rooms(known: Known) -> list[str]:
    """Return the lines of each room under its name, as Markdown."""
    return [f"## {room}\n\n{as_markdown(checks)}" for room, checks in known.items()]


def as_markdown(checks: Sequence[Check]) -> str:
    """Return lines of `validate` as a Markdown table.

    >>> print(as_markdown([Check("V100 linear MAPE", 4.2, "%", limit=5.0, ok=True, rows=120)]))
    | check | value | limit | | rows | note |
    | --- | ---: | ---: | --- | ---: | --- |
    | V100 linear MAPE | 4.2 % | 5 | ok | 120 |  |
    """
    lines = [
        "| check | value | limit | | rows | note |",
        "| --- | ---: | ---: | --- | ---: | --- |",
    ]
    for check in checks:
        value = "-" if check.value is None else f"{check.value:.4g} {check.unit}".rstrip()
        limit = "" if check.limit is None else f"{check.limit:g}"
        cells = (check.name, value, limit, check.verdict, f"{check.rows:,}", check.note)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def write_readme(known: Known, file: Path = README) -> None:
    """Put the figures of now into a README: the table, and what its example of `ask` ends with."""
    if not file.is_file():
        return
    write_text(file, with_figures(file.read_text(encoding="utf-8"), known))


def with_figures(text: str, known: Known) -> str:
    """Return a page with the table between its marks, and its example of `ask` brought up to date.

    >>> with_figures(f"a {START} old {END} b", {}).splitlines()[0]
    'a <!-- headlines: `validate --write` -->'
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if end:
        text = f"{before}{start}\n{claims(known)}\n{end}{after}"
    said = "".join(f"{line}\n" for line in sentences(evidence("serving", known)))
    return re.sub(r"(?m)(^Deadlines: .*\n)(?:^(?!Prices: ).+\n)*", lambda m: m[1] + said, text)


def sentences(evidence: Evidence) -> Iterator[str]:
    """Yield what an answer says of its accuracy: the count of checks, and the first claim."""
    yield evidence.in_short()
    for one in headlines_of(evidence)[:1]:
        yield one.in_words(evidence.by_room)


def _together(checks: Sequence[Check]) -> str:
    """Return the figure of one line, or the range of several and how many keep to their limits."""
    if not checks:
        return "absent"
    if len(checks) == 1:
        return _figure(checks[0])
    judged = [check for check in checks if check.ok is not None]
    met = f"{sum(bool(check.ok) for check in judged)} of {len(judged)} within limits"
    kinds = {check.kind for check in checks}
    if kinds == {COVERAGE}:
        ways = Counter(check.verdict for check in judged)
        return ", ".join(f"{ways[how]} {how}" for how in ("ok", "too wide", "too narrow"))
    if kinds == {PARITY}:
        return met
    values = sorted(check.value for check in checks if check.value is not None)
    unit = checks[0].unit
    low, high = _rounded(values[0], "").strip(), _rounded(values[-1], unit)
    return f"{low} to {high} ({met if judged else 'no limit'})"


def _figure(check: Check) -> str:
    """Return a value with its limit, if it has one."""
    value = _rounded(check.value, check.unit)
    if check.ok is None:
        return value
    if check.kind == COVERAGE:
        return f"{value} ({check.verdict})"
    limit = f"{check.limit:.3g}"
    return f"{value} (limit {limit})" if check.ok else f"{value} (misses {limit})"


def _rounded(value: float | None, unit: str) -> str:
    """Return a figure as the table prints it.

    >>> _rounded(9.96, "%"), _rounded(100.0, "%")
    ('10.0 %', '100 %')
    """
    if value is None:
        return NONE
    digits = 0 if abs(value) >= 99.95 else 1
    return f"{value:.{digits}f} {unit}".strip()
