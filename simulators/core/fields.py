"""Fields of point types: columns of grouped options, and rules for allowed values.

A field of a point type may be a frozen dataclass itself, a group of options as in vLLM. Columns are
flat: an option of a group has a dotted name, `speculation.method`.

A rule belongs to its field: `tp: int = choice("tensor parallel degree", at_least=1, default=1)`. A
batch of points that breaks rules raises one error that names every broken rule.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import inf, isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from simulators.core.errors import UnknownNameError, UserError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ValueRule:
    """Allowed values of a field: a range of numbers, or a list of words. Null is always allowed.

    `reads` validates words with a syntax: it raises `UserError` for an invalid word.
    """

    at_least: float = -inf
    above: float = -inf
    at_most: float = inf
    below: float = inf
    known: tuple[str, ...] = ()
    reads: Callable[[str], object] | None = None

    def allows(self, value: Any) -> bool:
        """Return whether a value is allowed.

        >>> [ValueRule(above=0.0, at_most=1.0).allows(value) for value in (0.0, 0.5, 1.0, None)]
        [False, True, True, True]
        """
        if value is None:
            return True
        if self.known or self.reads:
            return self.broken_by("", value) is None
        return bool(self.at_least <= value <= self.at_most and self.above < value < self.below)

    def spelt(self, word: str) -> str:
        """Return the allowed word that differs from a word in capitals alone, or the word.

        >>> ValueRule(known=("fp8", "fp16")).spelt("FP8")
        'fp8'
        """
        if not (self.known or self.reads) or self.broken_by("", word) is None:
            return word
        lower = next((known for known in self.known if known.lower() == word.lower()), word.lower())
        return word if self.broken_by("", lower) else lower

    def broken_by(self, name: str, value: Any) -> UserError | None:
        """Return the error for a value of the field `name`, or None if the value is allowed.

        >>> ValueRule(at_least=0.0, below=1.0).broken_by("watermark", 1.5)
        UserError('watermark is 1.5; it must be at least 0 and below 1')
        """
        if self.reads and value is not None:
            try:
                self.reads(value)
            except UserError as wrong:
                return wrong
            return None
        if self.known and value is not None:
            return None if value in self.known else UnknownNameError(name, str(value), self.known)
        if self.allows(value):
            return None
        if isinstance(value, int):  # may be larger than any float
            value = max(-sys.float_info.max, min(value, sys.float_info.max))
        ends = {"at least": self.at_least, "above": self.above}
        ends |= {"at most": self.at_most, "below": self.below}
        wanted = " and ".join(f"{word} {end:g}" for word, end in ends.items() if isfinite(end))
        wanted = "positive" if wanted == "above 0" else wanted
        wanted = wanted if isfinite(value) else "finite"
        return UserError(f"{name} is {value:g}; it must be {wanted}")


def check_point(point: Any) -> None:
    """Raise `UserError` if fields of a point break their rules, with a line for each."""
    kind: Any = type(point)
    _raise_all(rule.broken_by(name, attrgetter(name)(point)) for name, rule in rules_of(kind))


def check_batch(kind: type, batch: pa.RecordBatch) -> None:
    """Raise `UserError` if columns of a point type break rules, with one line per value."""
    _raise_all(
        rule.broken_by(name, value)
        for name, rule in rules_of(kind)
        for value in _values_to_check(batch.column(name))
    )


def obeys_rules(kind: type, batch: pa.RecordBatch) -> bool:
    """Return whether no column of a point type breaks a rule."""
    try:
        check_batch(kind, batch)
    except UserError:
        return False
    return True


@functools.cache
def rules_of(kind: Any) -> tuple[tuple[str, ValueRule], ...]:
    """Return the columns of a point type that have a rule."""
    rules = ((c.name, c.metadata.get("rule", ValueRule())) for c in columns_of(kind))
    return tuple((name, rule) for name, rule in rules if rule != ValueRule())


def _values_to_check(column: pa.Array) -> list[Any]:
    """Return the values of a column that need a check: minimum and maximum, or each word."""
    import pyarrow as pa  # here, so that the help of a command does not load it
    import pyarrow.compute as pc

    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        ends = pc.min_max(column).as_py()
        return sorted(set(ends.values()) - {None})
    distinct: list[Any] = pc.unique(column).to_pylist()
    return distinct


def _raise_all(found: Iterable[UserError | None]) -> None:
    broken = [error for error in found if error is not None]
    if len(broken) > 1:
        raise UserError("\n".join(map(str, broken)))
    if broken:
        raise broken[0]


P = TypeVar("P")


@dataclass(frozen=True)
class Column:
    """One column of a point, facts or metrics type. Grouped options have dotted names."""

    name: str
    hint: Any  # its annotation
    default: Any  # `dataclasses.MISSING` where there is none
    metadata: Mapping[str, Any]

    @property
    def is_nullable(self) -> bool:
        """Whether the column may be null: its annotation is `X | None`."""
        return type(None) in typing.get_args(self.hint)

    @property
    def group(self) -> str:
        """The name of the column's group of options; empty without a group."""
        return self.name.rpartition(".")[0]


def hints_of(kind: Any) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass, by name."""
    return _hints(kind)


_hints = functools.cache(typing.get_type_hints)
"""Cached, since annotations are strings, which Python compiles at every call."""


@functools.cache
def columns_of(kind: Any) -> tuple[Column, ...]:
    """Return the columns of a dataclass; a group of options is replaced by its columns."""
    hints, found = hints_of(kind), []
    for f in fields(kind):
        if dataclasses.is_dataclass(hints[f.name]):
            found += [_of_group(c, f.name, f.metadata) for c in columns_of(hints[f.name])]
        else:
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found.append(Column(f.name, hints[f.name], default, f.metadata))
    return tuple(found)


def _of_group(column: Column, group: str, about: Mapping[str, Any]) -> Column:
    """Return a column of a group under its dotted name; it has an effect if the group is on."""
    metadata = {**column.metadata}
    if (switch := about.get("switch")) and column.name != switch and not metadata.get("acts_if"):
        metadata["acts_if"] = {f"{group}.{switch}": ()}
    return dataclasses.replace(column, name=f"{group}.{column.name}", metadata=metadata)


def check_effects(kind: Any, axes: Mapping[str, Iterable[Any]]) -> None:
    """Raise `UserError` if values of an axis have no effect at any value of the other axes.

    An axis at its default alone is not refused: nobody asked for it.
    """
    values = {name: set(written) for name, written in axes.items()}
    defaults = {c.name: c.default for c in columns_of(kind)}

    def acts(name: str, acting: Sequence[Any]) -> bool:
        return bool(values[name] & set(acting) if acting else values[name] - {defaults[name]})

    _raise_all(
        UserError(
            f"{c.name} has no effect: {' and '.join(_stated(n, values[n]) for n in wanted)}; "
            f"leave {c.name} out, or set {' or '.join(_wanted(n, v) for n, v in wanted.items())}"
        )
        for c in columns_of(kind)
        if (wanted := c.metadata.get("acts_if"))
        and values[c.name] - {c.default}
        and not any(acts(name, acting) for name, acting in wanted.items())
    )


def _stated(name: str, values: Iterable[Any]) -> str:
    return f"{name} is {', '.join(sorted(map(_word, values)))}"


def _wanted(name: str, acting: Sequence[Any]) -> str:
    return f"{name} to {' or '.join(map(_word, acting))}" if acting else name


def _word(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def option_groups(kind: Any) -> dict[str, str]:
    """Return the documentation of each group of options of a point type, by name."""
    hints = hints_of(kind)
    grouped = (f for f in fields(kind) if dataclasses.is_dataclass(hints[f.name]))
    return {f.name: f.metadata["doc"] for f in grouped}


def point_from(kind: type[P], values: Mapping[str, Any]) -> P:
    """Return a point with values given by column name, and defaults elsewhere."""
    hints = hints_of(kind)
    own, groups = _by_group(values)
    made = {name: point_from(hints[name], options) for name, options in groups.items()}
    return kind(**own, **made)


def updated(point: P, values: Mapping[str, Any]) -> P:
    """Return a copy of a point with other values of some columns, given by name."""
    own, groups = _by_group(values)
    for name, options in groups.items():
        own[name] = updated(own.get(name, getattr(point, name)), options)
    return dataclasses.replace(point, **own)  # type: ignore[type-var]


def _by_group(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    own: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        group, _, option = name.partition(".")
        if isinstance(value, Mapping):
            groups.setdefault(name, {}).update(value)
        elif option:
            groups.setdefault(group, {})[option] = value
        else:
            own[name] = value
    return own, groups


def values_of(point: Any) -> dict[str, Any]:
    """Return the values of a point by column name."""
    kind: Any = type(point)
    return {c.name: attrgetter(c.name)(point) for c in columns_of(kind)}
