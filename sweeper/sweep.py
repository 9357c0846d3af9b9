"""A sweep: picks points, evaluates those without a row, returns all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.contract import is_registered, load_simulator, objectives_of
from sweeper.engines import Engine, Say, load_engine
from sweeper.engines.task import UNSTATED, Limits, Task
from sweeper.query.scenarios import repriced, unpriced
from sweeper.samplers import Goal, Sampler, SearchSampler, load_sampler
from sweeper.samplers._search_driver import as_sampler
from sweeper.space.design_space import DesignSpace, Objectives, given
from sweeper.space.points import Batch
from sweeper.space.space_file import SpaceConfig
from sweeper.store.keys import define
from sweeper.store.parquet import check_writable
from sweeper.store.store import Part, Store, adopt


@dataclass(frozen=True)
class Sweep:
    """A space, a sampler of its points, an engine, and a store of rows.

    `objectives` and `where` (an SQL condition) are those of the live front and of searches, in each
    scenario of the `given` axes; no row depends on them.
    """

    space: DesignSpace
    sampler: Sampler | SearchSampler
    engine: Engine
    store: Store
    objectives: Objectives
    where: str | None = None
    limits: Limits = UNSTATED
    priced: DesignSpace | None = None  # the space at the prices asked for
    given: tuple[str, ...] = ()  # axes that vary and are no choice

    @classmethod
    def of(
        cls,
        space: DesignSpace,
        *,
        outputs: str = "outputs/notebook",
        objectives: Objectives | None = None,
        where: str | None = None,
        sampler: str | Sampler | SearchSampler = "grid",
        engine: str | Engine = "auto",
        **options: Any,
    ) -> Sweep:
        """Return the sweep of a space, for a notebook.

        Its answers are kept in `outputs`, and found there by the next run. The objectives are the
        simulator's own unless others are given. The sampler is a name such as `grid`, `random` or
        `nsga2` with `**options` such as `points=500`, a dotted module, a file, or an object; the
        engine `auto`, `inline`, `process` or `ray`. A simulator that is an object is answered in
        this process.
        """
        if engine == "auto" and is_registered(space.simulator):
            engine = "inline"
        wanted = objectives or objectives_of(load_simulator(space.simulator))
        simulated = unpriced(space)
        return cls(
            simulated,
            load_sampler(sampler, **options) if isinstance(sampler, str) else sampler,
            load_engine(engine) if isinstance(engine, str) else engine,
            Store(outputs, define(simulated)),
            wanted,
            where,
            priced=space,
            given=given(SpaceConfig(), space, wanted),
        )

    @property
    def picks(self) -> Sampler:
        """The sampler, or the driver of its search."""
        return as_sampler(self.sampler, Goal(self.objectives, self.where, self.given, self.priced))

    def run(
        self,
        watch: Callable[[Part], None] = lambda _: None,
        say: Say = lambda _: None,
        expect: Callable[[Sequence[Batch], Sequence[Batch]], None] = lambda _, __: None,
    ) -> pl.LazyFrame:
        """Run the sweep and return all rows; arguments as of `answer`."""
        self.answer(watch, say, expect)
        return repriced(self.store.scan(), self.priced or self.space)

    def answer(
        self,
        watch: Callable[[Part], None] = lambda _: None,
        say: Say = lambda _: None,
        expect: Callable[[Sequence[Batch], Sequence[Batch]], None] = lambda _, __: None,
    ) -> None:
        """Run the sweep; the rows stay in the store.

        An interrupted sweep can be run again; it loses only the batches in progress.

        Args:
            watch: receives the summary of every part.
            say: receives lines about what is done.
            expect: receives, before each round, the points picked and those without a row.
        """
        check_writable(self.store.results)
        if sum(len(span) for span in self.store.finished()) < len(self.space):
            for taken, folder in adopt(self.store, self.space):
                say(f"{taken:,} points were already answered in {folder}")
        task = Task(self.space, self.store, self.objectives, self.where, self.limits)
        with self.engine.open() as pool:
            for round_ in self.picks.rounds(self.space, self.store.scan):
                picked = list(round_)
                fresh = list(self.store.missing(self.space, picked))
                expect(picked, fresh)
                left = sum(len(batch) for batch in fresh)
                if left:
                    for part in pool.run(task, fresh, left, say):
                        watch(part)
