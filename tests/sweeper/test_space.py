"""Point numbers are mixed-radix numbers; the first axis varies slowest."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.core.errors import UserError
from sweeper.samplers.random import Random
from sweeper.space import rules
from sweeper.space.axes import Factor
from sweeper.space.design_space import DesignSpace, objectives
from sweeper.space.points import Span
from sweeper.space.space_file import SpaceConfig
from tests.toys import AIMLESS, QUADRATIC, space

FLOATS = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=5, unique=True)
WHOLE = st.lists(st.integers(-50, 50), min_size=1, max_size=4, unique=True)
WORDS = st.lists(st.sampled_from(["a", "b", "c", "plain"]), min_size=1, max_size=3, unique=True)
MAYBE = st.lists(
    st.one_of(st.none(), st.integers(0, 9).map(float)), min_size=1, max_size=3, unique=True
)


@st.composite
def spaces(draw: st.DrawFn) -> DesignSpace:
    """Axes of every type in any order, some of them zipped or joined by union."""
    axes: dict[str, Any] = {
        "x": draw(FLOATS),
        "y": draw(FLOATS),
        "n": draw(WHOLE),
        "label": draw(WORDS),
        "bonus": draw(MAYBE),
        "flipped": draw(st.sampled_from(([False], [True, False]))),
    }
    axes = {name: axes[name] for name in draw(st.permutations(list(axes)))}
    more: dict[str, Any] = {}
    if len(axes["x"]) == len(axes["n"]):
        more["zip"] = [["x", "n"]]
    elif draw(st.booleans()):
        first = {"x": axes.pop("x"), "label": axes.pop("label")}
        more["union"] = [first, {"x": draw(FLOATS), "label": draw(WORDS)}]
    return space(QUADRATIC, axes, **more)


def everything(asked: DesignSpace) -> Span:
    return Span(0, len(asked))


@given(asked=spaces())
def test_point_numbers_decode_like_numpy_unravel_index(asked: DesignSpace) -> None:
    sizes = [len(factor) for factor in asked.factors]
    expected = np.unravel_index(np.arange(len(asked)), sizes)
    for where in (everything(asked), np.arange(len(asked))):
        for mine, theirs in zip(asked.codes(where), expected, strict=True):
            assert np.array_equal(mine, theirs)


@given(asked=spaces())
def test_points_are_the_product_of_the_factors_in_order(asked: DesignSpace) -> None:
    rows = [list(zip(*f.columns.values(), strict=True)) for f in asked.factors]
    names = [name for f in asked.factors for name in f.columns]
    expected = [tuple(itertools.chain(*choice)) for choice in itertools.product(*rows)]
    assert asked.points(everything(asked)).select(names).rows() == expected


@given(asked=spaces(), data=st.data())
def test_partial_range_decodes_like_the_whole_range(
    asked: DesignSpace, data: st.DataObject
) -> None:
    lo = data.draw(st.integers(0, len(asked)))
    hi = data.draw(st.integers(lo, len(asked)))
    inside = st.integers(lo, max(lo, hi - 1))
    without = data.draw(st.lists(inside, unique=True, max_size=hi - lo).map(sorted))
    span = Span(lo, hi, np.array(without, np.int64) if hi > lo else np.empty(0, np.int64))
    numbers = [i for i in range(lo, hi) if i not in without]
    assert span.index().tolist() == numbers
    assert len(span) == len(numbers)
    whole = asked.points(everything(asked))
    assert asked.points(span).equals(whole[numbers])
    batch = pl.DataFrame(pl.from_arrow(asked.batch(span)))
    assert batch.with_columns(pl.col("label").cast(pl.String)).equals(whole[numbers])


@given(lo=st.integers(0, 20), data=st.data())
def test_filtered_batch_keeps_the_remaining_axes(lo: int, data: st.DataObject) -> None:
    hi = data.draw(st.integers(lo + 1, 40))
    without = data.draw(st.lists(st.integers(lo, hi - 1), unique=True).map(sorted))
    span = Span(lo, hi, np.array(without, np.int64))
    first = data.draw(st.integers(lo, hi))
    last = data.draw(st.integers(first, hi))
    assert span.cut(first, last).index().tolist() == [
        i for i in range(first, last) if i not in without
    ]


@given(asked=spaces(), data=st.data())
def test_point_is_converted_to_its_number(asked: DesignSpace, data: st.DataObject) -> None:
    index = np.array(data.draw(st.permutations(range(len(asked)))), np.int64)[:50]
    assert asked.index_of(asked.points(index)).tolist() == index.tolist()


@given(asked=spaces())
def test_point_outside_the_space_has_no_number(asked: DesignSpace) -> None:
    points = asked.points(everything(asked)).with_columns(y=pl.col("y") + 1000.0)
    assert (asked.index_of(points) == -1).all()


RULES = (
    "x > 0",
    "n <> 3 OR label = 'a'",
    "bonus IS NULL OR bonus < y",
    "area >= 0",
    "flipped",
    "x + y < twice",
    "label IN ('a', 'b') AND n % 2 = 0",
    "bonus > 3",
    "1 = 1",
    "total <= 60",
)
DERIVED = {"twice": "n * 2", "total": "twice + area"}


def brute_force(asked: DesignSpace) -> pl.DataFrame:
    """Evaluate rules and derived columns on every point, one after the other."""
    table = asked.points(everything(asked)).with_columns(area=pl.col("x") * pl.col("y"))
    for name, sql in asked.derived.items():
        table = table.with_columns(pl.sql_expr(sql).alias(name))
    return table


@given(asked=spaces(), rules=st.lists(st.sampled_from(RULES), max_size=4, unique=True))
def test_constraints_match_brute_force(asked: DesignSpace, rules: list[str]) -> None:
    asked = DesignSpace(asked.simulator, asked.factors, DERIVED, tuple(rules))
    table = brute_force(asked)
    alive = np.ones(len(table), bool)
    counts = {}
    for rule in rules:
        allowed = table.select(pl.lit(value=True) & pl.sql_expr(rule))  # broadcast to all rows
        ok = allowed.to_series().fill_null(value=False).to_numpy()
        ok = np.broadcast_to(ok, len(table))
        counts[rule] = int((alive & ~ok).sum())
        alive &= ok
    assert asked.removed() == counts
    for where in (everything(asked), np.arange(len(asked))):
        kept = asked.kept(where)
        assert np.array_equal(alive, np.ones(len(asked), bool) if kept is None else kept)


@given(asked=spaces(), table=st.sampled_from((0, 1 << 21)))
def test_derived_columns_equal_sql_expressions(asked: DesignSpace, table: int) -> None:
    derived = {**DERIVED, "where": "label || '!'", "some": "bonus + 1", "one": "1"}
    asked = DesignSpace(asked.simulator, asked.factors, derived)
    expected = brute_force(asked)
    numbers = np.arange(len(asked))[::-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "TABLE", table)  # 0: evaluate per batch, never tabulate
        found = asked.derive(numbers)
    for name in derived:
        assert pl.Series(name, found[name]).to_list() == expected[name].to_list()[::-1]


def test_derived_text_column_keeps_its_type_without_rows() -> None:
    asked = space(QUADRATIC, {"x": "1..3"}, derived={"word": "label || '!'"})
    nothing = np.empty(0, np.int64)
    assert asked.derive(nothing)["word"].type == asked.derive(np.arange(1))["word"].type


def test_fact_is_evaluated_only_on_required_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.toys.quadratic import Quadratic

    asked_rows = []
    original = Quadratic.describe
    monkeypatch.setattr(
        Quadratic, "describe", lambda self, b: asked_rows.append(b.num_rows) or original(self, b)
    )
    asked = space(QUADRATIC, {"n": "1..1000", "x": "1..4", "y": "1..5"}, constraints=["area <= 10"])
    assert asked.removed() == {"area <= 10": 5 * 1000}  # 3×4 3×5 4×3 4×4 4×5
    assert max(asked_rows) == 20


def test_billion_points_are_counted_by_relevant_axes() -> None:
    axes = {"x": "1..1000", "y": "1..1000", "n": "1..1000"}
    asked = space(QUADRATIC, axes, constraints=["x <= 100", "n > 10"])
    assert len(asked) == 10**9
    assert asked.removed() == {"x <= 100": 900 * 10**6, "n > 10": 10 * 10**6 // 10}


TRILLION = {"x": "1..1000", "y": "1..1000", "n": "1..1000", "bonus": "1..1000"}


def test_independent_constraints_on_a_trillion_points_are_counted_exactly() -> None:
    asked = space(QUADRATIC, TRILLION, constraints=["x + y <= 20", "n = bonus", "x > 1"])
    assert len(asked) == 10**12
    assert asked.removed() == {
        "x + y <= 20": (10**6 - 190) * 10**6,
        "n = bonus": 190 * (10**6 - 10**3),
        "x > 1": 19 * 10**3,
    }
    assert not asked.counts.about
    picked = Random(points=500, seed=3).draw(asked)
    assert len(np.unique(picked)) == 500
    assert asked.kept(picked) is None


def test_strongly_coupled_constraints_are_counted_by_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sweeper.samplers.random._PATIENCE", 1 << 17)
    asked = space(QUADRATIC, TRILLION, constraints=["x > y", "y > n", "n > bonus", "bonus > 1000"])
    assert asked.counts.about == set(asked.constraints)
    assert asked.removed()["x > y"] == pytest.approx(0.5e12, rel=0.01)
    left = asked.size - sum(asked.removed().values())
    assert 0 < left <= asked.size // 2**16 + 1  # none of a sample is not none of all
    assert asked.counts.in_words[0].startswith("about 49")
    assert len(Random(points=5).draw(asked)) == 0


def test_large_point_number_is_decoded_exactly() -> None:
    asked = space(QUADRATIC, {"x": "1..100000", "y": "1..100000", "n": "1..100000"})
    number = 99_999 * 10**10 + 54_321 * 10**5 + 12
    row = asked.points(np.array([number], np.int64)).row(0, named=True)
    assert (row["x"], row["y"], row["n"]) == (100_000.0, 54_322.0, 13)
    assert asked.points(Span(number, number + 1)).row(0, named=True) == row


def test_pickled_space_has_no_caches() -> None:
    asked = space(QUADRATIC, {"x": "1..4", "y": "1..5"}, constraints=["area <= 10"])
    small = len(pickle.dumps(asked))
    asked.removed(), asked.points(everything(asked))
    assert len(pickle.dumps(asked)) == small
    copy = pickle.loads(pickle.dumps(asked))  # noqa: S301 - just written
    assert copy == asked
    assert copy.removed() == asked.removed()


def test_zipped_axes_move_together_and_unions_have_no_duplicates() -> None:
    zipped = space(QUADRATIC, {"x": [1, 2], "n": [10, 20], "y": [5]}, zip=[["x", "n"]])
    assert zipped.points(everything(zipped)).select("x", "n").rows() == [(1.0, 10), (2.0, 20)]
    grids = [{"x": [1, 2], "n": 1}, {"x": [2, 3], "n": [1, 2]}]
    joined = space(QUADRATIC, {"y": [5]}, union=grids)
    assert joined.points(everything(joined)).select("x", "n").rows() == [
        (1.0, 1),
        (2.0, 1),
        (2.0, 2),
        (3.0, 1),
        (3.0, 2),
    ]


def test_zipped_axes_of_unequal_length_are_refused() -> None:
    with pytest.raises(UserError, match="x has 2, n has 3"):
        Factor({"x": (1.0, 2.0), "n": (1, 2, 3)})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"axis": {}}, "a space has no key 'axis'; did you mean 'axes'?"),
        ({"simulator": None}, "a space needs `simulator:`"),
        ({"simulator": "tests.toys.quadratc"}, "unknown simulator 'tests.toys.quadratc'"),
        ({"simulator": "servng"}, "unknown simulator 'servng'"),
        ({"axes": {"xx": 1}}, "axis 'xx' is not an input"),
        ({"axes": {1: 2}}, "`axes` is a mapping from names"),
        ({"objectives": {"gain": "up"}}, "`objectives` is a mapping from metrics to min or max"),
        ({"objectives": ["gain"]}, "`objectives` is a mapping"),
        ({"axes": {"y": 1}}, "also needs the axes: x"),
        ({"axes": ["x"]}, "`axes` is a mapping from names"),
        ({"axes": dict.fromkeys(("x", "y", "n", "bonus"), "1..50000")}, "6.25e+18 points"),
        ({"zip": [["x", "z"]]}, "`zip` names 'z', which is no axis"),
        ({"zip": [["x", "y"], ["y", "n"]]}, "`zip` names 'y' twice"),
        ({"zip": "x"}, "`zip` is a list of lists"),
        ({"union": [{"x": 1}]}, "axis 'x' stands both in `axes` and in `union`"),
        ({"union": [{"n": 1}, {"label": "a"}]}, "must name the same axes: n"),
        ({"derived": {"x": "1"}}, "derived column 'x' has the name of an axis or a metric"),
        ({"derived": {"gain": "1"}}, "derived column 'gain' has the name of an axis or a metric"),
        ({"derived": {"area": "1"}}, "derived column 'area' has the name of a fact"),
        ({"derived": {"a": "b", "b": "x"}}, "derived column 'a' names 'b', which is no column"),
        ({"derived": {"a": "a + 1"}}, "derived column 'a' names 'a', which is no column"),
        ({"constraints": ["gpuz < 4"]}, "names 'gpuz', which is no column"),
        ({"constraints": ["x <"]}, "constraint 'x <' is not an SQL expression"),
        ({"constraints": ["x + 1"]}, "constraint 'x + 1' is not true or false"),
        ({"constraints": ["label > 1"]}, "constraint 'label > 1' cannot be computed"),
        ({"constraints": ["MAX(x) > 3"]}, "no function of single values"),
        ({"constraints": {"x": 1}}, "`constraints` is a list of SQL conditions"),
    ],
)
def test_error_in_a_space_raises_a_user_error(change: dict[str, Any], complaint: str) -> None:
    written = {"axes": {"x": "1..4", "y": "1..4"}, **change}
    with pytest.raises(UserError) as caught:
        space(written.pop("simulator", QUADRATIC), written.pop("axes"), **written).removed()
    assert complaint in str(caught.value)


def test_single_constraint_may_be_a_string() -> None:
    assert space(QUADRATIC, {"x": "1..4"}, constraints="x <= 3").removed() == {"x <= 3": 1}


@pytest.mark.parametrize(
    ("simulator", "wanted", "complaint"),
    [
        (QUADRATIC, {"cost": "min"}, "objective 'cost' is neither a metric"),
        (QUADRATIC, {"tag": "min"}, "objective 'tag' is not a number"),
        (AIMLESS, {"word": "min"}, "objective 'word' is not a number"),
        (AIMLESS, {}, "names no `objectives:`"),
    ],
)
def test_error_in_objectives_raises_a_user_error(
    simulator: str, wanted: Any, complaint: str
) -> None:
    axes = {"x": 1} if simulator == QUADRATIC else {"n": 1}
    more = {"derived": {"tag": "label || '!'"}} if simulator == QUADRATIC else {}
    asked = space(simulator, axes, **more)
    with pytest.raises(UserError) as caught:
        objectives(SpaceConfig(objectives=wanted), asked)
    assert complaint in str(caught.value)


def test_default_objectives_come_from_the_simulator_and_derived_columns_are_allowed() -> None:
    asked = space(QUADRATIC, {"x": 1}, derived={"double": "x * 2"})
    assert objectives(SpaceConfig(), asked) == {"cost_usd": "min", "gain": "max"}
    assert objectives(SpaceConfig(objectives={"double": "max"}), asked) == {"double": "max"}
