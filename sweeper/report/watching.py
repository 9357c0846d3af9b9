"""A sweep that runs elsewhere, as its files show it: each part is read once, when it appears."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from simulators.core.errors import UserError
from sweeper.query.pareto import FEASIBLE, local_front, minimised, qualifying
from sweeper.report.answers import Answers
from sweeper.report.progress import Progress
from sweeper.space.sql import names_in
from sweeper.store.parquet import read_frame
from sweeper.store.part_names import definition_in
from sweeper.store.seals import check
from sweeper.store.store import Part


@dataclass
class Watch:
    """What has been seen of a sweep so far."""

    answers: Answers
    progress: Progress = field(init=False)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        total = self.answers.points or self.answers.space.size
        self.progress = Progress(total, self.answers.objectives)

    @property
    def ended(self) -> bool:
        """Whether the run has written what came of it."""
        return (self.answers.folder / "summary.json").is_file()

    def look(self) -> int:
        """Take note of the parts that are new, and return how many they are."""
        store = self.answers.store
        new = [n for n in store.parts() if n not in self.seen and self._is_ours(n)]
        for name in new:
            try:
                check(store.results, name)
                self.progress.add(self._summary(name))
            except UserError:  # being tidied up, or a query will tell
                continue
        self.seen.update(new)
        return len(new)

    def _is_ours(self, name: str) -> bool:
        return definition_in(name) == self.answers.store.definition.id

    def _summary(self, name: str) -> Part:
        """Return what the worker that wrote a part told its driver."""
        found, wanted = self.answers, self.answers.objectives
        asked = names_in(found.where, "where") if found.where else []
        columns = list(dict.fromkeys([*wanted, *asked, "status", "reason"]))
        rows = read_frame(found.store.results, name, columns)
        good = qualifying(rows.lazy().filter(FEASIBLE), where=found.where).collect()
        values = minimised(good, dict.fromkeys(wanted, "min"))
        front, ties = local_front(dict(zip(wanted, values.T, strict=True)), wanted)
        reasons = Counter(text.split(":")[0] for text in rows["reason"].drop_nulls().to_list())
        status: dict[str, int] = dict(
            rows.group_by(pl.col("status").cast(pl.String)).len().iter_rows()
        )
        return Part(name, len(rows), status, dict(reasons), front, ties, seconds=0.0)


def state(watch: Watch) -> str:
    """Return what has been seen as JSON, for programs."""
    progress = watch.progress
    front = [dict(zip(watch.answers.objectives, row, strict=True)) for row in progress.front()]
    told = {"points": progress.total, "rows": dict(progress.rows), "ended": watch.ended}
    return json.dumps({**told, "front": front})
