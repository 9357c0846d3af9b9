"""Conditions are SQL over one row, of bounded length; errors are messages."""

from __future__ import annotations

import polars as pl
import pytest

from simulators.core.errors import UserError
from sweeper.query.pareto import pareto_front
from sweeper.space.sql import condition, names_in, parsed
from tests.toys import QUADRATIC, space

SCHEMA = {"x": pl.Float64(), "n": pl.Int64(), "label": pl.String()}
REFUSED = [
    ("x < AVG(x)", "calls 'AVG', which is no function of single values"),
    ("COUNT(*) > 1", "no function of single values"),
    ("ROW_NUMBER() OVER (ORDER BY x) = 1", "no function of single values"),
    ("x IN (SELECT 1)", "has the word .SELECT"),
    ("LPAD(label, 2000000000, 'x') = 'a'", "calls 'LPAD'"),
    ("REPEAT(label, 2000000000) = 'a'", "calls 'REPEAT'"),
    ("READ_CSV('/etc/passwd') = 1", "calls 'READ_CSV'"),
    ("x > CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP"),
    (" OR ".join(["x = 1"] * 5_000), "longer than 10,000 characters"),
    (" AND ".join(["n=1"] * 20_000), "longer than 10,000 characters"),
    ("x" + "||x" * 1_300 + " = 'a'", "too long"),
    ("(" * 500 + "x" + ")" * 500 + " > 1", "too long"),
    ("x + 1", "not true or false, but Float64"),
    ("label > 1", "cannot be computed"),
    ("x > 1; DROP", "what is ; DROP"),
    ("x > 1 -- 2", "what is -- 2"),
    ("x > 'a", "not an SQL expression"),
    ("nothing > 1", "there is no column 'nothing'"),
    ("x > " + "9" * 400, "."),
    ("", "not an SQL expression"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=lambda text: text[:20])
def test_aggregate_condition_is_refused_with_a_message(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        condition(text, SCHEMA)
    assert len(str(raised.value).splitlines()) < 12
    assert len(str(raised.value)) < 1500


@pytest.mark.parametrize(("text", "message"), REFUSED[:6], ids=lambda text: text[:20])
def test_constraints_refuse_aggregates(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        space(QUADRATIC, {"x": "1..3"}, constraints=[text])
    with pytest.raises(UserError, match=message):
        space(QUADRATIC, {"x": "1..3"}, derived={"d": text})


@pytest.mark.parametrize(
    "text",
    [
        "x > 1 AND n IN (1, 2)",
        "label LIKE 'a%' OR label = 'it''s -- (fine'",
        "CASE WHEN x > 1 THEN n ELSE 3 END BETWEEN 1 AND 2",
        'NOT "x" IS NULL',
        "GREATEST(x, n) * 2 >= LOG2(n) + 0.001",
        "x::int = 2 AND CAST(n AS VARCHAR) = '2'",
        "TRUE",
    ],
)
def test_row_wise_condition_is_accepted(text: str) -> None:
    rows = pl.LazyFrame({"x": [1.0, 2.0], "n": [1, 2], "label": ["a", "b"]}, schema=SCHEMA)
    assert rows.filter(condition(text, SCHEMA)).collect().height <= 2


def test_columns_of_an_expression_are_unique_and_ordered() -> None:
    assert names_in("n > 1 AND x > n", "it") == ("n", "x")
    assert parsed("x", "it").meta.root_names() == ["x"]


def test_front_of_an_aggregate_is_refused() -> None:
    rows = pl.LazyFrame({"x": [1.0, 2.0], "status": ["ok", "ok"]})
    with pytest.raises(UserError, match="no function of single values"):
        pareto_front(rows, {"x": "min"}, where="x < AVG(x)")
