"""The configuration of a run, stored beside the results.

A stored configuration can be read and run again, with changes:

    asked = Configuration.of_run("outputs/quickstart/runs/000001-2026-01-31T12-00-00Z")
    dataclasses.replace(asked, engine={"name": "ray"}).sweep().run()
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from simulators.core.errors import UserError, unknown
from sweeper.engines import load_engine
from sweeper.engines.task import Limits
from sweeper.query.scenarios import unpriced
from sweeper.samplers import Goal, Sampler, SearchSampler, load_sampler
from sweeper.samplers._axis_searches import capacity_search, refined_search
from sweeper.space.design_space import DesignSpace, given, objectives, space_of, where
from sweeper.space.shipped_files import check_name
from sweeper.space.space_file import SpaceConfig, parse_space
from sweeper.space.sql import shown
from sweeper.store.keys import define
from sweeper.store.store import Store
from sweeper.sweep import Sweep
from sweeper.typed import MistypedError, from_json, typed

_LIMITS = ("timeout_s", "memory_gb")


class Failures(TypedDict, total=False):
    """Retries of failed points, and limits on time and memory per point."""

    retry: bool
    max: int | None
    timeout_s: float
    memory_gb: float | None


class Chosen(TypedDict):
    """A sampler or an engine: its name, beside its options."""

    name: str


@dataclass(frozen=True)
class Configuration:
    """Configuration of a run: space, sampler, engine, limits on failures, and output."""

    name: str
    space: Mapping[str, Any]
    sampler: Chosen = field(default_factory=lambda: Chosen(name="grid"))
    engine: Chosen = field(default_factory=lambda: Chosen(name="auto"))
    failures: Failures = field(default_factory=lambda: Failures())
    outputs: str = "outputs"
    output: str = "text"
    plot: bool = True
    points: int | None = None  # number of selected points, known when the run starts

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.outputs.strip() or "\0" in self.outputs:
            raise UserError(
                f"outputs={self.outputs!r} is not a folder; write outputs=outputs, for example"
            )

    @classmethod
    def from_dict(cls, written: Mapping[str, Any]) -> Configuration:
        """Return the configuration that `to_dict` wrote.

        Raises:
            UserError: a key is unknown, or a required key is missing.
        """
        for key in written:
            if key not in TOP:
                raise unknown(f"a configuration has no key '{key}'", key, TOP)
        check_types(written)
        return cls(**written)

    @classmethod
    def of_run(cls, folder: str | Path) -> Configuration:
        """Return the configuration of the run in a folder."""
        file = Path(folder) / "config.json"
        try:
            return cls.from_dict(from_json(file.read_bytes(), dict[str, Any]))
        except (OSError, ValueError) as error:
            raise UserError(f"{file} cannot be read: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, the content of `config.json`."""
        return dataclasses.asdict(self)

    def sweep(self) -> Sweep:
        """Return the sweep of this configuration.

        Raises:
            UserError: a value is invalid.
        """
        config = parse_space(self.space)
        priced = space_of(config)
        space = unpriced(priced)
        wanted, failures = objectives(config, space), dict[str, Any](self.failures)
        meta = {"space": self.name, "objectives": json.dumps(wanted)}
        goal = Goal(wanted, where(config, space), given(config, space, wanted), priced)
        return Sweep(
            space=space,
            objectives=wanted,
            where=goal.where,
            sampler=_sampler(config, space, goal, **self.sampler),
            engine=load_engine(**self.engine),
            store=Store(f"{self.outputs}/{self.name}", define(space), meta),
            limits=Limits(**{n: failures[n] for n in _LIMITS if n in failures}),
            priced=priced,
            given=goal.given,
        )


TOP, FAILURES = tuple(Configuration.__annotations__), tuple(Failures.__annotations__)
"""The keys of a configuration, and of its part `failures`."""


def check_types(written: Mapping[str, Any]) -> None:
    """Raise `UserError` for the first value of a configuration that has the wrong type."""
    try:
        typed(written, Configuration)
    except MistypedError as error:
        value: Any = written
        for key in filter(None, error.path.split(".")):
            value = value[key]
        said = f"{error.path}={value}: write {error.wanted}" if error.path else error.wanted
        raise UserError(shown(said)) from error


def _sampler(
    written: SpaceConfig, space: DesignSpace, goal: Goal, name: str, **options: Any
) -> Sampler | SearchSampler:
    """Return the bisection or refinement that an axis requires, or the chosen sampler."""
    bisection, refined = capacity_search(written, space), refined_search(written, space, goal)
    if refined and bisection:
        raise UserError(f"axis '{refined.axis}' has a first and a then, beside a capacity axis")
    asked: Sampler | None = bisection or refined
    if asked is None:
        return load_sampler(name, **options)
    if name != "grid":
        what = "bisect" if bisection else "take a first and then"
        raise UserError(f"sampler={name} cannot {what}; leave the sampler out with such an axis")
    return asked
