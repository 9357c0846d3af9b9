"""A sweep: points are picked, those not answered yet are evaluated, all answers are returned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from simulators.core.contract import is_lent, load_simulator, objectives_of
from sweeper.engines import Engine, Say, load_engine
from sweeper.engines.limits import UNSTATED, Limits
from sweeper.engines.task import Task
from sweeper.query.repricing import repriced, unpriced
from sweeper.samplers import Goal, Sampler, SearchSampler, load_sampler
from sweeper.samplers._search_driver import as_sampler
from sweeper.space.design_space import DesignSpace
from sweeper.space.objectives import Objectives, given
from sweeper.space.space_config import SpaceConfig
from sweeper.space.spans import Batch
from sweeper.store.keys import define
from sweeper.store.parquet import check_writable
from sweeper.store.reuse import adopt
from sweeper.store.store import Part, Store


@dataclass(frozen=True)
class Sweep:
    """A space, how to pick its points, who evaluates them, and where the answers are kept.

    `objectives` and `where` (an SQL condition) say what the live front shows and what a search
    looks for, in each scenario of the axes that are `given`; no point's answer depends on them.
    """

    space: DesignSpace
    sampler: Sampler | SearchSampler
    engine: Engine
    store: Store
    objectives: Objectives
    where: str | None = None
    limits: Limits = UNSTATED
    priced: DesignSpace | None = None  # the same space in the prices that are asked for
    given: tuple[str, ...] = ()  # axes that vary and are not chosen

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
        if engine == "auto" and is_lent(space.simulator):
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
        """What picks its points: the sampler, or what does as a search asks."""
        return as_sampler(self.sampler, Goal(self.objectives, self.where, self.given, self.priced))

    def run(
        self,
        watch: Callable[[Part], None] = lambda _: None,
        say: Say = lambda _: None,
        expect: Callable[[Sequence[Batch], Sequence[Batch]], None] = lambda _, __: None,
    ) -> pl.LazyFrame:
        """Answer it, and return all answers; `watch`, `say` and `expect` are as in `answer`."""
        self.answer(watch, say, expect)
        return repriced(self.store.scan(), self.priced or self.space)

    def answer(
        self,
        watch: Callable[[Part], None] = lambda _: None,
        say: Say = lambda _: None,
        expect: Callable[[Sequence[Batch], Sequence[Batch]], None] = lambda _, __: None,
    ) -> None:
        """Answer it; the rows stay in the store.

        A sweep interrupted at any line can be run again; it loses what was in flight. `watch` is
        told of every part as it arrives, `say` what is being done, a line at a time, and `expect`
        before each round which points are picked and which of them have no answer yet.
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
