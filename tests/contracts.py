"""Contract suites for simulators, samplers and engines.

Each suite is one call in a test and raises an `AssertionError` that says what is broken.

    check_simulator(SIMULATOR, space.batch(Span(0, 20)))
    check_sampler(load_sampler("mine"), space)
    check_engine(load_engine("mine"), space)
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simulators.core.columns import OUTCOME, SHARES, schema_of
from simulators.core.contract import (
    Describes,
    EstimatesCost,
    Simulator,
    load_simulator,
    objectives_of,
)
from simulators.core.errors import UserError
from sweeper.engines import Engine, load_engine
from sweeper.engines.task import Task, validated
from sweeper.samplers import Sampler, SearchSampler
from sweeper.space.design_space import DesignSpace, Objectives
from sweeper.space.points import Batch, Span, numbers
from sweeper.store.keys import define
from sweeper.store.store import Store, answer_schema
from sweeper.sweep import Sweep


def check_simulator(simulator: Simulator, batch: pa.RecordBatch) -> None:
    """Check that a simulator is a pure function of each row and returns its declared columns.

    The batch holds a few points, some of them infeasible if possible.
    """
    results = _evaluate_twice(simulator, batch)
    _check_columns(simulator, results)
    _check_rows(results)
    _check_independence(simulator, batch, results)
    _check_optional_parts(simulator, batch)


def check_sampler(sampler: Sampler | SearchSampler, space: DesignSpace) -> None:
    """Check that a sampler selects allowed points of a space, each once, and is deterministic.

    The sampler should select few points of a space that is evaluated quickly.
    """
    with _temporary_store(space) as store:
        rounds = _rounds(sampler, space, store)
        picked = [number for numbers in rounds for number in numbers]
        assert picked, "a sampler selects at least one point"
        twice = [n for n, times in Counter(picked).items() if times > 1]
        assert not twice, f"points selected more than once: {twice[:5]}"
        outside = [n for n in picked if not 0 <= n < len(space)]
        assert not outside, f"numbers outside 0..{len(space) - 1}: {outside[:5]}"
        allowed = space.count(np.array(picked, np.int64))
        assert allowed <= sampler.size(space), "more points are selected than `size` returns"
        before = store.scan().collect().height
        assert before == allowed, f"{allowed} points were selected, but {before} have rows"
        again = _rounds(sampler, space, store)
        assert again == rounds, "a second run on the same results selects other points"
        assert not list(store.missing(space, [np.array(picked, np.int64)])), "it does not resume"
    with _temporary_store(space) as store:
        assert _rounds(sampler, space, store) == rounds, "the same options select other points"


def check_engine(engine: Engine, space: DesignSpace) -> None:
    """Check that an engine evaluates every point once, bit-equal to a single process.

    The space should be evaluated quickly and have constraints and infeasible points.
    """
    expected = _answers(load_engine("inline"), space, [Span(0, len(space))])
    whole = _answers(engine, space, [Span(0, len(space))])
    assert whole.equals(expected), _difference(whole, expected)
    order = np.random.default_rng(0).permutation(len(space))
    shuffled: list[Batch] = [np.sort(order[i : i + 7]) for i in range(0, len(order), 7)]
    pieces = _answers(engine, space, shuffled)
    assert pieces.equals(expected), "in shuffled order: " + _difference(pieces, expected)
    half = np.arange(0, len(space), 2, dtype=np.int64)
    holes = _answers(engine, space, [Span(0, len(space), half), half])
    assert holes.equals(expected), "without some points: " + _difference(holes, expected)


def _evaluate_twice(simulator: Simulator, batch: pa.RecordBatch) -> pa.RecordBatch:
    before = pickle.dumps(batch.to_pydict())
    results = simulator.evaluate(batch)
    try:
        validated(simulator, batch.num_rows, results)
    except UserError as error:
        raise AssertionError(str(error).splitlines()[0]) from error
    assert pickle.dumps(batch.to_pydict()) == before, "evaluate changed its input"
    again = simulator.evaluate(batch)
    _check_bits(again, results, "evaluated twice, the same batch gives different bits")
    return results


def _check_columns(simulator: Simulator, results: pa.RecordBatch) -> None:
    for kind in (simulator.point, simulator.metrics):
        frozen = dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert frozen, f"{kind.__name__} is not a frozen dataclass"
    point, metrics = schema_of(simulator.point), schema_of(simulator.metrics)
    twice = set(point.names) & {*metrics.names, *OUTCOME.names}
    assert not twice, f"columns that are inputs as well as metrics: {sorted(twice)}"
    declared = answer_schema(simulator).names
    returned = f"columns declared: {declared}; columns returned: {results.schema.names}"
    assert results.schema.names == declared, returned
    units = {f.name: (f.metadata or {}).get(b"unit", b"") for f in results.schema}
    lost = [f.name for f in metrics if f.name in units and units[f.name] != f.metadata[b"unit"]]
    assert not lost, f"metrics that lost their unit on the way: {lost}"


def _check_rows(results: pa.RecordBatch) -> None:
    status = np.array(results["status"].to_pylist(), dtype=object)
    reasons = np.array([bool(r) for r in results["reason"].to_pylist()])
    assert (reasons == (status != "ok")).all(), "rows have a reason if and only if they are not ok"
    _check_shares(results, status)
    metrics = [n for n in results.schema.names if n not in OUTCOME.names]
    for name in metrics:
        column = results[name]
        null = ~column.is_valid().to_numpy(zero_copy_only=False)
        assert null[status != "ok"].all(), f"{name} has a value in a row that is infeasible"
        if pa.types.is_floating(column.type):
            nan = pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
            assert not nan.any(), f"{name} is NaN in row {int(np.argmax(nan))}"
    silent = all(results[n].null_count == results.num_rows for n in metrics)
    assert not silent or (status != "ok").all(), "every metric is null although rows are ok"


def _check_shares(results: pa.RecordBatch, status: NDArray[np.object_]) -> None:
    shares = pl.DataFrame({name: results[name] for name in SHARES})
    said = ~shares.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy()
    assert not said[status != "ok"].any(), "an infeasible row states evidence shares"
    assert said[status == "ok"].all() or not said.any(), "only some ok rows state evidence"
    kept = shares.filter(pl.Series(said)).to_numpy()
    assert (kept >= 0.0).all(), "a share is negative"
    assert np.allclose(kept.sum(axis=1), 1.0), f"shares that do not add up: {kept.sum(axis=1)}"


def _check_independence(
    simulator: Simulator, batch: pa.RecordBatch, results: pa.RecordBatch
) -> None:
    for i in range(batch.num_rows):
        alone = simulator.evaluate(batch.slice(i, 1))
        _check_bits(alone, results.slice(i, 1), f"point {i} alone gives other bits")
    order = np.random.default_rng(0).permutation(batch.num_rows)
    shuffled = simulator.evaluate(batch.take(pa.array(order)))
    for place, i in enumerate(order.tolist()):
        row = shuffled.slice(place, 1)
        _check_bits(row, results.slice(i, 1), f"point {i} gives other bits in another order")
    plain = pa.RecordBatch.from_arrays(
        [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns],
        names=batch.schema.names,
    )
    _check_bits(simulator.evaluate(plain), results, "plain columns give other bits than codes")
    copy = pickle.loads(pickle.dumps(simulator))  # noqa: S301 - written a moment ago
    _check_bits(copy.evaluate(batch), results, "a pickled copy gives other bits")


def _check_optional_parts(simulator: Simulator, batch: pa.RecordBatch) -> None:
    if isinstance(simulator, Describes):
        facts = simulator.describe(batch)
        names = schema_of(simulator.facts).names
        assert facts.schema.names == names, f"facts promised: {names}; got {facts.schema.names}"
        assert facts.num_rows == batch.num_rows, "describe lost or made rows"
        inputs = set(schema_of(simulator.point).names)
        for f in dataclasses.fields(simulator.facts):
            unknown = set(f.metadata.get("needs", ())) - inputs
            assert not unknown, f"the fact {f.name} needs {sorted(unknown)}, which are no inputs"
    if isinstance(simulator, EstimatesCost):
        hints = np.asarray(simulator.cost_hint_s(batch))
        assert hints.shape == (batch.num_rows,), "one cost hint per point is wanted"
        assert (np.isfinite(hints) & (hints >= 0)).all(), "cost hints are seconds"
    for name, direction in objectives_of(simulator).items():
        kind = schema_of(simulator.metrics).field(name).type
        numeric = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        assert numeric or pa.types.is_boolean(kind), f"the objective {name} is {kind}"
        assert direction in ("min", "max"), f"the objective {name} is better when {direction}"


def _check_bits(one: pa.RecordBatch, other: pa.RecordBatch, complaint: str) -> None:
    """Check that two batches have the same columns and the same bits in each."""
    assert one.schema.names == other.schema.names, f"{complaint}: {one.schema.names}"
    changed = [n for n in other.schema.names if _bits(one[n]) != _bits(other[n])]
    assert not changed, f"{complaint}: {', '.join(changed)}"


def _bits(column: pa.Array) -> list[Any]:
    if pa.types.is_floating(column.type):  # so that -0.0 is not 0.0, and NaN is NaN
        valid = column.is_valid().to_pylist()
        words = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        return list(zip(valid, words.view(np.uint64).tolist(), strict=True))
    values: list[Any] = column.to_pylist()
    return values


@contextlib.contextmanager
def _temporary_store(space: DesignSpace) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="sweeper-") as folder:
        yield Store(f"{folder}/checked", define(space))


def _rounds(sampler: Sampler | SearchSampler, space: DesignSpace, store: Store) -> list[list[int]]:
    """Run a sampler and return the selected points of each round."""
    picked: list[list[int]] = []
    sweep = Sweep(space, sampler, load_engine("inline"), store, _objectives(space))
    sweep.run(expect=lambda batches, *_: picked.append([n for b in batches for n in numbers(b)]))
    return picked


def _answers(engine: Engine, space: DesignSpace, batches: list[Batch]) -> pl.DataFrame:
    """Return the rows that an engine writes, in the order of the points."""
    with _temporary_store(space) as store, engine.open() as pool:
        task = Task(space, store, _objectives(space))
        parts = list(pool.run(task, batches, len(space), lambda _: None))
        rows = store.scan().collect()
        for batch in store.missing(space, [Span(0, len(space))]):
            lost = space.count(batch)
            assert not lost, f"{lost} points of {batch} have no row"
    settled = sum(part.points for part in parts)
    assert settled == len(space), f"{settled} points were reported, of {len(space)}"
    counted = sum(sum(part.rows.values()) for part in parts)
    assert counted == len(rows), f"{counted} rows reported, {len(rows)} rows written"
    index = space.index_of(rows)
    assert len(np.unique(index)) == len(index), "some points have two rows"
    return rows[np.argsort(index)]


def _objectives(space: DesignSpace) -> Objectives:
    return objectives_of(load_simulator(space.simulator))


def _difference(one: pl.DataFrame, other: pl.DataFrame) -> str:
    if len(one) != len(other):
        return f"{len(one)} rows instead of {len(other)}"
    names = [n for n in other.columns if n not in one.columns or not one[n].equals(other[n])]
    return f"other values than in one process in {', '.join(names) or 'the order of columns'}"
