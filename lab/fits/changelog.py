"""Entries of a benchmark's changelog with measured rows on both sides (`changelog.toml`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.tables.deployments import PublicDeployment
from simulators.core.folder import read_toml


@dataclass(frozen=True, kw_only=True)
class ChangelogEntry:
    """One entry: what changed, and on which days the deployments were measured."""

    pull: int
    about: str
    rows: Mapping[str, str]  # framework, model, GPU and precision
    before: str
    after: str
    groups: Sequence[str]  # groups of facts that the entry changes
    changed: Sequence[str]  # options that differ, though a point may not show it

    def pairs(
        self, rows: Sequence[PublicDeployment]
    ) -> Iterator[tuple[PublicDeployment, PublicDeployment]]:
        """Yield the first rows before and after of each layout and load."""
        named = tuple(self.rows[name] for name in ("model", "gpu", "framework", "precision"))
        own: dict[tuple[object, ...], list[PublicDeployment]] = {}
        for row in rows:
            if row.family[:4] == named:
                own.setdefault(_deployment(row), []).append(row)
        for members in own.values():
            ends = [
                next((row for row in members if row.measured == day), None)
                for day in (self.before, self.after)
            ]
            if ends[0] and ends[1]:
                yield ends[0], ends[1]


def _deployment(row: PublicDeployment) -> tuple[object, ...]:
    load = (row.clients, row.crowded, row.prompt, row.output)
    return (row.dtype, row.layout, row.client, row.is_median, *load)


def entries() -> list[ChangelogEntry]:
    """Return the entries, oldest first."""
    content = read_toml(Path(__file__).with_suffix(".toml"))
    return [ChangelogEntry(**one) for one in content["entries"]]
