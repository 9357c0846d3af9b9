"""User-defined simulators and samplers: objects, folders and files; outputs are validated."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import sweeper
from simulators.core.columns import OUTCOME, numbers, outcome
from simulators.core.contract import choice, metric
from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.configuration import Configuration
from sweeper.samplers import Results
from sweeper.space.design_space import DesignSpace
from sweeper.space.points import Batch
from sweeper.sweep import Sweep


@dataclass(frozen=True)
class Point:
    """A number."""

    n: int = choice("which")


@dataclass(frozen=True)
class Metrics:
    """What comes of it."""

    twice: float = metric("two of it", better="min")


@dataclass(frozen=True)
class Doubling:
    """A simulator that doubles its input, with an optional deliberate mistake."""

    mistake: str = ""
    name: str = "doubling"
    version: int = 1
    point: type = Point
    metrics: type = Metrics

    def evaluate(self, batch: pa.RecordBatch) -> Any:
        good = outcome(Metrics, {"twice": 2.0 * numbers(batch, "n")})
        place = good.schema.get_field_index
        match self.mistake:
            case "list":
                return good.to_pylist()
            case "rows":
                return good.slice(1)
            case "column":
                return good.remove_column(place("twice"))
            case "extra":
                return good.append_column("thrice", good.column("twice"))
            case "type":
                return good.set_column(place("twice"), "twice", pa.array(numbers(batch, "n")))
            case "status":
                words = pa.array(["done"] * batch.num_rows).cast(OUTCOME.field("status").type)
                return good.set_column(place("status"), "status", words)
        return good


@dataclass(frozen=True)
class Every:
    """A sampler that lives in this test: every so many points."""

    step: int

    def rounds(self, space: DesignSpace, results: Results) -> Iterator[Iterable[Batch]]:
        yield [np.arange(0, len(space), self.step, dtype=np.int64)]

    def size(self, space: DesignSpace) -> int:
        return -(-len(space) // self.step)


def test_simulator_and_sampler_may_be_objects(workplace: Path) -> None:
    space = DesignSpace.of(Doubling(), n="1..9")
    rows = Sweep.of(space, sampler=Every(4), outputs=str(workplace)).run().collect()
    assert dict(rows.select("n", "twice").sort("n").rows()) == {1: 2.0, 5: 10.0, 9: 18.0}


def test_object_without_the_protocol_is_refused() -> None:
    with pytest.raises(UserError, match="Every is no simulator: it needs `name`"):
        DesignSpace.of(Every(1), n=1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="there is a simulator 'serving' already"):
        DesignSpace.of(Doubling(name="serving"), n=1)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("list", "returned list, where a pyarrow.RecordBatch is wanted"),
        ("rows", "was given 9 points and returned 8 rows"),
        ("column", "returned no column twice"),
        ("extra", "returned the column thrice, which its metrics type does not declare"),
        ("type", "declares 'twice' as double, but returned int64"),
        ("status", "gave a point the status 'done'; a point is ok or infeasible"),
    ],
)
def test_malformed_output_is_reported_and_never_stored(
    workplace: Path, mistake: str, said: str
) -> None:
    space = DesignSpace.of(Doubling(mistake, name=f"bad_{mistake}"), n="1..9")
    sweep = Sweep.of(space, outputs=str(workplace))
    with pytest.raises(UserError, match=said):
        sweep.run()
    assert not list(workplace.rglob("*.parquet"))


def test_folder_loads_as_a_simulator(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = workplace / "mine"
    folder.mkdir()
    toy = Path(__file__).parents[1] / "toys" / "rented.py"
    (folder / "simulator.py").write_text(toy.read_text())
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "own.yaml").write_text(
        "simulator: ./mine\naxes: {box: [a, b], boxes: [1, 4]}\n"
    )
    assert main(["+space=own", "plot=false", "engine=inline"]) == 0
    assert "4 ok" in capsys.readouterr().out
    assert list(workplace.glob("outputs/own/results/**/*.parquet"))


def test_public_names_are_listed_and_exist() -> None:
    listed = dir(sweeper)
    assert {"DesignSpace", "Sweep", "pareto_front", "across", "latest", "Configuration"} <= set(
        listed
    )
    assert all(getattr(sweeper, name) is not None for name in sweeper.__all__)
    assert (Path(str(sweeper.__file__)).parent / "py.typed").is_file()


def test_run_configuration_survives_a_round_trip(workplace: Path) -> None:
    (workplace / "spaces").mkdir()
    (workplace / "spaces" / "toy.yaml").write_text(
        "simulator: tests.toys.rented\naxes: {box: [a, b], boxes: [1, 4]}\n"
    )
    words = ["+space=toy", "plot=false", "engine=inline", "sampler=random", "sampler.points=3"]
    assert main(words) == 0
    [folder] = (workplace / "outputs" / "toy" / "runs").iterdir()
    asked = Configuration.of_run(folder)
    assert asked.points == 3
    assert asked.sampler == {"name": "random", "points": 3, "seed": 0}
    assert Configuration.from_dict(json.loads(json.dumps(asked.to_dict()))) == asked
    rows = asked.sweep().run().collect()
    assert len(rows) == 3
    whole = dataclasses.replace(asked, sampler={"name": "grid"}, outputs="elsewhere")
    assert set(whole.sweep().run().collect()["box"]) == {"a", "b"}
    with pytest.raises(UserError, match="a configuration has no key 'sampller'; did you mean"):
        Configuration.from_dict({"name": "x", "space": {}, "sampller": {}})
    assert pl.read_parquet(next(workplace.glob("outputs/toy/results/**/*.parquet"))).height == 3
