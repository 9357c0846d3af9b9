"""Field rules: every violation of a point or batch is reported at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import pyarrow as pa
import pytest

from simulators.core.columns import schema_of
from simulators.core.contract import choice, fields_of
from simulators.core.errors import UserError
from simulators.core.fields import check_batch, check_point
from simulators.workload.precision import PRECISIONS, precision


@dataclass(frozen=True)
class Point:
    name: str = choice("anything", default="x")
    tp: int = choice("degree", at_least=1, part="cut", default=1)
    share: float = choice("of memory", above=0.0, at_most=1.0, default=0.5)
    qps: float | None = choice("rate", above=0.0, default=None)
    preemption: str = choice("how", known=("recompute", "swap"), default="swap")
    dtype: str = choice("precision", reads=precision, default="bf16+fp4")


GOOD, BAD = Point(), Point(tp=0, share=1.5, qps=float("inf"), preemption="swop", dtype="fp17")


def batch(*points: Point) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([asdict(p) for p in points], schema=schema_of(Point))


def test_all_errors_of_a_point_are_reported_at_once() -> None:
    check_point(GOOD)
    with pytest.raises(UserError) as error:
        check_point(BAD)
    assert str(error.value).splitlines() == [
        "tp is 0; it must be at least 1",
        "share is 1.5; it must be above 0 and at most 1",
        "qps is inf; it must be finite",
        "unknown preemption 'swop'; did you mean 'swap'?",
        "Known: recompute, swap",
        "unknown dtype 'fp17'; did you mean 'fp16'?",
        f"Known: {', '.join(sorted(PRECISIONS))}",
    ]


def test_batch_errors_equal_point_errors() -> None:
    check_batch(Point, batch(GOOD, replace(GOOD, qps=3.0), GOOD))
    with pytest.raises(UserError) as one:
        check_point(BAD)
    with pytest.raises(UserError) as many:
        check_batch(Point, batch(GOOD, BAD, GOOD))
    assert str(many.value) == str(one.value)


def test_unused_dictionary_values_break_no_rule() -> None:
    words = pa.array(["swap", "swop"]).dictionary_encode()
    columns = {n: batch(GOOD).column(n) for n in Point.__dataclass_fields__}
    check_batch(Point, pa.RecordBatch.from_pydict({**columns, "preemption": words[:1]}))
    with pytest.raises(UserError, match="swop"):
        check_batch(Point, pa.RecordBatch.from_pydict({**columns, "preemption": words[1:]}))


def test_fields_are_grouped_by_part() -> None:
    assert fields_of(Point, "cut") == ("tp",)
