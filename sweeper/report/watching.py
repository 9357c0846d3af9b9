"""Read the progress of a sweep of another process from result files; reads each part once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import polars as pl

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from sweeper.query.fronts import Matrix
from sweeper.query.pareto import FEASIBLE, local_front, minimised, qualifying
from sweeper.report.answers import Answers
from sweeper.report.progress import Progress
from sweeper.report.run_folder import is_from_here, progress_of
from sweeper.space.sql import names_in
from sweeper.store.keys import definition_in
from sweeper.store.parquet import check, read_frame
from sweeper.store.store import Part, is_held


@dataclass
class Watch:
    """The rows of a run so far, and the front including earlier rows."""

    answers: Answers
    progress: Progress = field(init=False)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        found = self.answers
        self.progress = Progress(found.points or found.space.size, found.objectives)
        # Front of earlier rows; reading a part of this run again would not change the front.
        self.progress.add(Part("", 0, {}, {}, *self._front(found.front), seconds=0.0))

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        folder = self.answers.folder
        return "rows" in (progress_of(folder) or {}) or (folder / "summary.json").is_file()

    @property
    def stopped(self) -> bool:
        """Whether a run on this machine stopped before the end."""
        folder, store = self.answers.folder, self.answers.store
        return is_from_here(folder) and not is_held(store) and not self.ended

    def look(self) -> int:
        """Read new parts, and return their number."""
        known = progress_of(self.answers.folder)
        if known is None:  # the first round has not started
            return 0
        store, progress = self.answers.store, self.progress
        progress.answered, progress.total = known["answered"], known["to_do"]
        parts = store.parts(since_ns=known["started_ns"])
        new = [name for name in parts if name not in self.seen and self._is_ours(name)]
        for name in new:
            try:
                check(store.results, name)
                progress.add(self._summary(name))
            except UserError:  # being compacted, or damaged: a query reports damage
                continue
        self.seen.update(new)
        if "rows" in known:
            progress.rows = Counter(known["rows"])
        return len(new)

    def _is_ours(self, name: str) -> bool:
        return definition_in(name) == self.answers.store.definition.id

    def _summary(self, name: str) -> Part:
        """Return the summary of a part."""
        found, wanted = self.answers, self.answers.objectives
        asked = names_in(found.where, "where") if found.where else []
        columns = list(dict.fromkeys([*wanted, *asked, "status", "reason"]))
        rows = read_frame(found.store.results, name, columns)
        good = qualifying(rows.lazy().filter(FEASIBLE), where=found.where).collect()
        reasons = Counter(text.split(":")[0] for text in rows["reason"].drop_nulls().to_list())
        status: dict[str, int] = dict(
            rows.group_by(pl.col("status").cast(pl.String)).len().iter_rows()
        )
        return Part(name, len(rows), status, dict(reasons), *self._front(good), seconds=0.0)

    def _front(self, rows: pl.DataFrame) -> tuple[Matrix, Ints]:
        """Return the distinct objective vectors on the front, and the ties of each."""
        wanted = self.answers.objectives
        values = minimised(rows, dict.fromkeys(wanted, "min"))  # as they are
        return local_front(dict(zip(wanted, values.T, strict=True)), wanted)


def state(watch: Watch) -> str:
    """Return the progress as JSON."""
    progress = watch.progress
    front = [dict(zip(watch.answers.objectives, row, strict=True)) for row in progress.front()]
    found = {
        "points": progress.total,
        "answered": progress.answered,
        "rows": dict(progress.rows),
        "stopped": watch.stopped,
        "ended": watch.ended,
        "front": front,
    }
    return json.dumps(found)
