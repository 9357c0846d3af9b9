"""The time of a stored design as a tree of phases and operators, which notebooks show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from simulators.core.contract import Contribution
from sweeper.commands.design import designs, grouped
from sweeper.store.keys import SHOWN
from sweeper.text import human


@dataclass(frozen=True)
class Breakdown:
    """The contributions to a design: a tree of phases and their operators, longest first."""

    title: str
    contributions: Sequence[Contribution]

    def __repr__(self) -> str:
        lines = [self.title]
        for phase, time_s, rows in self._phases():
            lines.append(f"├─ {phase}  {human(time_s, 's')}")
            lines += [f"│  ├─ {_in_words(row, time_s)}" for row in rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [f"<b>{escape(self.title)}</b>"]
        for phase, time_s, rows in self._phases():
            items = "".join(f"<li>{escape(_in_words(row, time_s))}</li>" for row in rows)
            head = f"<summary>{escape(phase)}, {human(time_s, 's')}</summary>"
            parts.append(f"<details open>{head}<ul>{items}</ul></details>")
        return "".join(parts)

    def _phases(self) -> Iterator[tuple[str, float, list[Contribution]]]:
        """Yield each phase with its time and its largest operators."""
        for phase in dict.fromkeys(row.phase for row in self.contributions):
            rows = [row for row in self.contributions if row.phase == phase]
            time_s = sum(row.time_s for row in rows)
            if time_s > 0.0:
                yield phase, time_s, [row for row in grouped(rows) if row.time_s > 0.0]


def _in_words(row: Contribution, phase_s: float) -> str:
    bound = f", bound by {row.bound}" if row.bound else ""
    return f"{row.name}: {human(row.time_s, 's')}, {row.time_s / phase_s:.0%}{bound}, {row.level}"


def explain(name: str, key: str = "knee", outputs: str = "outputs") -> Breakdown:
    """Return the time of each operator of a stored design, for a notebook.

    Args:
        name: a space that has been run.
        key: the first digits of a design's key, or `knee`.
        outputs: the folder or URL of results.

    Raises:
        UserError: there is no such result, or the simulator does not report operators.
    """
    last, [design] = designs(name, outputs, key)
    choices = " ".join(last.choices(design.row))
    return Breakdown(f"{name} {design.key[:SHOWN]}: {choices}", design.operators())
