"""Every shipped simulator, sampler and engine fulfils its contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from simulators.core.folder import SIMULATORS
from sweeper import engines, samplers
from sweeper.engines import load_engine
from sweeper.samplers import load_sampler
from sweeper.space import shipped_files
from sweeper.space.design_space import DesignSpace, space_of
from sweeper.space.points import Span
from sweeper.space.space_file import read_space
from tests.contracts import check_engine, check_sampler, check_simulator
from tests.toys import COUNTING, QUADRATIC, TROUBLE, space

ROWS = 12


def bowl(**more: Any) -> DesignSpace:
    """A small space with constraints, nulls, zipped axes, ties and infeasible points."""
    return space(
        QUADRATIC,
        {"x": "1..5", "n": [1, 2, 13], "label": ["a", "b", "c"], "y": "0..3", "bonus": [None, 2]},
        zip=[["n", "label"]],
        derived={"where": "label || '!'"},
        constraints=["x + y < 8", "area <> 4"],
        **more,
    )


def few_points(name: str) -> pa.RecordBatch:
    """Return points of a simulator: written here, or spread over the first shipped space of its."""
    if name in POINTS:
        return _spread(space(name, POINTS[name]))
    for file in shipped_files.spaces().values():
        written = read_space(file)
        if written.get("simulator") == name:
            return _spread(space_of(written))
    pytest.skip("no space uses this simulator")


POINTS = {
    "composition": {
        "model": ["llama2_7b", "llama2_70b"],
        "gpu": ["h100_sxm", "t4"],
        "tp": [1, 2],
        "phase": ["prefill", "decode"],
        "context": [1, 4096],
    },
    "dataflow": {
        "accelerator": "eyeriss_like",
        "network": ["bert_base_128", "vgg16"],
        "pe_rows": [8, 12],
        "spad_scale": [0.001, 1, 2],
        "dataflow": ["weight_stationary", "row_stationary", "any"],
        "remainders": [False, True],
        "weight_density": ["1", "0.3"],
        "evaluations": 100,
    },
    "multicore": {
        "cores": ["2*two_level", "two_level"],
        "network": "bert_base_128",
        "pipelining": ["layers", "rows"],
        "noc": ["bus", "mesh"],
        "tiles": 4,
        "l2_bytes": [0, 1_000_000],
        "allocation": ["search", "rows"],
        "allocations": 5,
        "evaluations": 20,
    },
    "kernels": {
        "gpu": ["h100_sxm", "t4"],
        "op": ["gemm", "attention_prefill", "attention_decode"],
        "m": [1, 300],
        "n": 4096,
        "k": 512,
        "heads": 8,
        "new_tokens": 16,
        "past_tokens": 64,
    },
}
"""For simulators that no space asks, or asks for what takes long: layers without end."""


def _spread(asked: DesignSpace) -> pa.RecordBatch:
    where = np.unique(np.linspace(0, len(asked) - 1, 40 * ROWS).astype(np.int64))
    kept = asked.kept(where)
    where = where if kept is None else where[kept]
    return asked.batch(where[np.linspace(0, len(where) - 1, ROWS).astype(np.int64)])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.slow if name in ("codesign", "dataflow", "multicore") else ()
        )
        for name in SIMULATORS.names()
    ],
)
def test_shipped_simulator_fulfils_the_contract(name: str) -> None:
    check_simulator(load_simulator(name), few_points(name))


@pytest.mark.parametrize("name", [QUADRATIC, TROUBLE])
def test_external_simulator_fulfils_the_contract(name: str) -> None:
    asked = bowl() if name == QUADRATIC else space(TROUBLE, {"n": "0..9", "dies": [3, 4]})
    check_simulator(load_simulator(name), asked.batch(Span(0, 20)))


@pytest.mark.parametrize("name", [n for n in samplers.names() if n != "bounds"])  # has none here
@pytest.mark.parametrize("points", [20, 1000])
def test_sampler_fulfils_the_contract(name: str, points: int) -> None:
    fields = samplers.options_of(name).__dataclass_fields__
    if name == "bayes":
        pytest.importorskip("optuna", reason="needs the extra search")
        points = 20
    check_sampler(load_sampler(name, **({"points": points} if "points" in fields else {})), bowl())


@pytest.mark.parametrize("name", [e for e in engines.ENGINES if e != "ray"])
def test_inline_engine_fulfils_the_contract(name: str) -> None:
    check_engine(load_engine(name), bowl())


class Broken:
    """A simulator spoilt in one way."""

    def __init__(self, spoil: Any, **attributes: Any) -> None:
        self._spoil = spoil
        self._sound = load_simulator(QUADRATIC)
        for name in ("name", "version", "point", "metrics"):
            setattr(self, name, attributes.get(name, getattr(self._sound, name)))

    def evaluate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._spoil(self._sound.evaluate(batch), batch)


def _with(results: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    place = results.schema.names.index(name)
    return results.set_column(place, results.schema.field(name), column)


def _scaled_by_batch(results: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
    costs = results["cost_usd"].to_numpy(zero_copy_only=False) * (1.0 + 1e-16 * batch.num_rows)
    mean = np.nansum(results["gain"].to_numpy(zero_copy_only=False))
    dead = ~results["cost_usd"].is_valid().to_numpy(zero_copy_only=False)
    return _with(results, "cost_usd", pa.array(costs + mean * 1e-9, mask=dead))


def _nan(results: pa.RecordBatch, _: pa.RecordBatch) -> pa.RecordBatch:
    return _with(results, "gain", pa.array([float("nan")] * results.num_rows))


def _drawn(results: pa.RecordBatch, _: pa.RecordBatch) -> pa.RecordBatch:
    noise = np.random.default_rng().random(results.num_rows)
    return _with(results, "gain", pa.array(noise))


def _narrow(results: pa.RecordBatch, _: pa.RecordBatch) -> pa.RecordBatch:
    names = results.schema.names
    gain = results["gain"].cast(pa.float32())
    return pa.RecordBatch.from_arrays([gain if n == "gain" else results[n] for n in names], names)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda r, _: r.slice(1), "returned 9 rows"),
        (lambda r, _: r.select(r.schema.names[1:]), "returned no column"),
        (lambda r, _: r.select(r.schema.names[::-1]), "columns declared"),
        (_narrow, "but returned"),
        (_nan, "gain has a value in a row that is infeasible"),
        (_drawn, "different bits"),
        (_scaled_by_batch, "alone gives other bits"),
        (lambda r, _: r.slice(0).to_struct_array(), "returned StructArray"),
    ],
)
def test_contract_suite_detects_a_broken_simulator(spoil: Any, complaint: str) -> None:
    asked = space(QUADRATIC, {"x": "1..5", "n": [1, 13]})
    with pytest.raises(AssertionError, match=complaint):
        check_simulator(Broken(spoil), asked.batch(Span(0, 10)))  # type: ignore[arg-type]


class Spoilt:
    """A sampler or an engine with overridden, faulty parts."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [([[]], "at least one"), ([[1, 1]], "more than once"), ([[1], [1]], "more than once")],
)
def test_contract_suite_detects_a_broken_sampler(numbers: list[list[int]], complaint: str) -> None:
    rounds = [[np.array(r, np.int64)] for r in numbers]
    sampler = Spoilt(rounds=lambda *_: iter(rounds), size=len)
    with pytest.raises(AssertionError, match=complaint):
        check_sampler(sampler, bowl())


def test_contract_suite_detects_a_nondeterministic_sampler() -> None:
    random = np.random.default_rng()
    sampler = Spoilt(rounds=lambda s, _: iter([[random.permutation(len(s))[:30]]]), size=len)
    with pytest.raises(AssertionError, match="other points"):
        check_sampler(sampler, bowl())


def test_contract_suite_detects_a_lost_batch() -> None:
    class Lazy:
        @contextmanager
        def open(self) -> Iterator[Any]:
            with load_engine("inline").open() as pool:
                first = [Span(0, 3)]
                yield Spoilt(run=lambda task, _, total, say: pool.run(task, first, total, say))

    with pytest.raises(AssertionError, match="have no row"):
        check_engine(Lazy(), bowl())


def test_results_are_bit_equal_in_any_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    check_engine(load_engine("inline"), space(COUNTING, {"n": "0..30", "log": str(log)}))


def test_user_error_in_a_simulator_stops_the_sweep() -> None:
    with pytest.raises(UserError, match="n=4 means nothing"):
        check_engine(load_engine("inline"), space(TROUBLE, {"n": "0..9", "refuses": 4}))
