"""A sweep: select points, evaluate points without a stored row, return all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.contract import is_registered, load_simulator, objectives_of
from sweeper.engines import Engine, Say, load_engine
from sweeper.engines.task import UNSTATED, Limits, Task
from sweeper.query.pareto import STATUS
from sweeper.query.scenarios import repriced, unpriced
from sweeper.samplers import Goal, Round, Sampler, SearchSampler, load_sampler
from sweeper.samplers._search_driver import as_sampler
from sweeper.space.design_space import DesignSpace, Objectives, check_directions, given
from sweeper.space.points import Batch
from sweeper.space.space_file import SpaceConfig
from sweeper.store.keys import define
from sweeper.store.parquet import check_writable
from sweeper.store.store import Part, Store, adopt
from sweeper.text import counted

Expect = Callable[[Sequence[Batch], Sequence[Batch], int | None], None]
"""Called before each round of a sweep."""


@dataclass(frozen=True)
class Sweep:
    """A space, a sampler of its points, an engine, and a store of rows.

    Searches and the live front use `objectives` and `where` (an SQL condition), separately in each
    scenario of the `given` axes. Stored rows do not depend on them.
    """

    space: DesignSpace
    sampler: Sampler | SearchSampler
    engine: Engine
    store: Store
    objectives: Objectives
    where: str | None = None
    limits: Limits = UNSTATED
    priced: DesignSpace | None = None  # the space with the requested price lists
    given: tuple[str, ...] = ()  # scenario axes

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

        Args:
            space: the design space.
            outputs: folder of the rows; the next run reuses them.
            objectives: metrics to `min` or `max`; by default those of the simulator.
            where: an SQL condition on rows.
            sampler: an object, a file, a dotted module, or a name such as `grid` or `nsga2`.
            engine: an object, or `auto`, `inline`, `process` or `ray`. Simulators that are objects
                run in this process.
            options: options of the sampler, such as `points=500`.
        """
        if engine == "auto" and is_registered(space.simulator):
            engine = "inline"
        wanted = objectives or objectives_of(load_simulator(space.simulator))
        check_directions(wanted)
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
        expect: Expect = lambda _, __, ___: None,
    ) -> pl.LazyFrame:
        """Run the sweep and return all rows, which stay in the store.

        The first columns are the axes that vary, and `status`.

        An interrupted sweep can be run again; it loses only the batches in progress.

        Args:
            watch: called with the summary of every part.
            say: called with messages about the progress.
            expect: called before each round with the selected points, the points without a row,
                and the expected number of points of later rounds, None if unknown.
        """
        check_writable(self.store.results)
        if sum(len(span) for span in self.store.finished()) < len(self.space):
            for taken, folder in adopt(self.store, self.space):
                say(f"{counted(taken, 'point')} already simulated in {folder}")
        task = Task(self.space, self.store, self.objectives, self.where, self.limits)
        with self.engine.open() as pool:
            for round_ in self.picks.rounds(self.space, self.store.scan):
                picked, later = list(round_), round_.later if isinstance(round_, Round) else None
                fresh = Round(self.store.missing(self.space, picked), later or 0)
                expect(picked, fresh, later)
                left = sum(len(batch) for batch in fresh)
                if left:
                    for part in pool.run(task, fresh, left, say):
                        watch(part)
        rows = repriced(self.store.scan(), self.priced or self.space)
        names = rows.collect_schema().names()
        varied = [name for name in (self.priced or self.space).varied if name in names]
        return rows.select(list(dict.fromkeys([*varied, STATUS, *names])))
