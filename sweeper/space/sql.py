"""Conditions and derived columns: polars SQL over the columns of one row at a time.

Numbers with a unit (`800ms`, `10k`) become plain numbers, and aliases of catalog entries
(`gpu = 'H100'`) become their names. Every word is checked before polars parses the text: functions
of single values, keywords and columns are allowed; aggregates and subqueries are not.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from simulators.core.errors import UserError, unknown
from simulators.core.folder import FOLDERS
from sweeper.text import TIMES, number_in

_POWERS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_UNITS = {**TIMES, **_POWERS}  # units right behind a number in a condition, and their factors
_WORDS = "|".join(sorted(_UNITS, key=len, reverse=True))
_NUMBER = re.compile(
    rf"('(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`)|(?<![\w.])(\d+(?:\.\d+)?|\.\d+)({_WORDS})\b"
)
_EQUAL = re.compile(r"\b(\w+)(\s*(?:=|<>|!=)\s*)('[^']*')")
_AMONG = re.compile(r"\b(\w+)(\s+(?:NOT\s+)?IN\s*)\(([^()]*)\)", re.IGNORECASE)
_KINDS = {"prices": "price"}  # folders of columns with another name


def spelt(text: str) -> str:
    """Return a condition with plain numbers, and with names in place of aliases.

    >>> spelt("ttft_p99_s <= 800ms AND gpu = 'H100'")
    "ttft_p99_s <= 0.8 AND gpu = 'h100_sxm'"
    """
    text = _NUMBER.sub(lambda m: m[1] or f"{float(m[2]) * _UNITS[m[3]]:.12g}", text)
    text = _EQUAL.sub(lambda m: f"{m[1]}{m[2]}{_names_in(m[1], m[3])}", text)
    return _AMONG.sub(lambda m: f"{m[1]}{m[2]}({_names_in(m[1], m[3])})", text)


def _names_in(column: str, quoted: str) -> str:
    """Return quoted words with names of the column's folder in place of aliases."""
    kind = _KINDS.get(column, column)
    return re.sub(r"'([^']*)'", lambda m: f"'{named(kind, m[1])}'", quoted)


def named(kind: str, word: str) -> str:
    """Return the name of the catalog entry that a word is an alias of, or the word.

    >>> named("gpu", "h100"), named("gpu", "h100_sxm"), named("colour", "h100")
    ('h100_sxm', 'h100_sxm', 'h100')
    """
    folder = FOLDERS.get(kind)
    if folder is None or folder.suffix != ".toml" or word in folder.names():
        return word
    if not folder.has(word):
        return named(folder.besides.kind, word) if folder.besides else word
    return folder.name_of(word)


def number(written: Any, unit: str) -> Any:
    """Return the values of a numeric axis, with texts such as `10k` as numbers.

    >>> number(["800ms", 2], "s"), number("1..8", "")
    ([0.8, 2], '1..8')
    """
    if isinstance(written, list | tuple):
        return [number(item, unit) for item in written]
    found = number_in(written, unit) if isinstance(written, str) else None
    return written if found is None else found


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


FUNCTIONS = _set(
    "ABS CAST CEIL CEILING CHAR_LENGTH COALESCE COS ENDS_WITH EXP FLOOR GREATEST IF IFNULL LEAST "
    "LEFT LENGTH LN LOG LOG10 LOG1P LOG2 LOWER LTRIM MOD NULLIF PI POW POWER REGEXP_LIKE RIGHT "
    "ROUND RTRIM SIGN SIN SQRT STARTS_WITH STRPOS SUBSTR TAN TRY_CAST UPPER"
)
"""Functions of single values whose results are no longer than their arguments."""
WORDS = _set(
    "AND AS BETWEEN BIGINT BOOL BOOLEAN CASE DOUBLE ELSE END FALSE FLOAT ILIKE IN INT INTEGER IS "
    "LIKE NOT NULL OR PRECISION REAL REGEXP RLIKE SMALLINT STRING TEXT THEN TRUE VARCHAR WHEN "
    "XOR"
)
"""Keywords and types."""
LONGEST, MOST, DEEPEST = 10_000, 400, 40
"""Largest number of characters, of words and operators, and depth of brackets."""
_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*') | (?P<name>"[^"]+"|`[^`]+`) | (?P<word>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?) | (?P<blank>\s+)
    | (?P<sign>\|\||<=|>=|<>|!=|::|[-+*/%<>=(),~!])""",
    re.VERBOSE,
)

_DOTTED = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)+)""")
"""Quoted text, which is kept, or the dotted name of a grouped option."""


def names_in(text: str, what: str) -> tuple[str, ...]:
    """Return the columns of an SQL expression; `what` is its name in messages."""
    return tuple(dict.fromkeys(parsed(text, what).meta.root_names()))


@functools.lru_cache(maxsize=1024)
def parsed(text: str, what: str) -> pl.Expr:
    """Return an SQL expression over single rows.

    Raises:
        UserError: a word is no column, function or operator, or polars cannot parse the text.

    >>> parsed("cost < AVG(cost)", "where 'cost < AVG(cost)'")
    Traceback (most recent call last):
        ...
    simulators.core.errors.UserError: where 'cost < AVG(cost)' calls 'AVG', which is no function \
of single values...
    """
    text = spelt(text)
    strange = _strange_words(text, what)
    try:
        expression = pl.sql_expr(_DOTTED.sub(_quoted, text))
        columns = set(expression.meta.root_names())
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UserError(f"{shown(what)} is not an SQL expression: {_said(error)}") from error
    for word in strange:
        if word not in columns:
            raise unknown(
                f"{shown(what)} has the word '{word[:40]}', which is no column, function or "
                "operator here",
                word,
                sorted(FUNCTIONS),
                "Functions",
            )
    return expression


def condition(where: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return an SQL condition over columns of these types as a boolean expression."""
    what = f"where '{where}'"
    check_columns(names_in(where, what), list(schema), shown(what))
    expression = parsed(where, what)
    with computed(what):
        (kind,) = pl.LazyFrame(schema=schema).select(expression).collect().dtypes
    if kind not in (pl.Boolean, pl.Null):
        raise UserError(f"{shown(what)} is not true or false, but {kind}")
    return expression


@contextmanager
def computed(what: str) -> Iterator[None]:
    """Convert errors in the evaluation of an expression to UserError."""
    try:
        yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UserError(f"{shown(what)} cannot be computed: {_said(error)}") from error


def shown(what: str, longest: int = 120) -> str:
    """Return a text, shortened for a message.

    >>> shown("where 'a > 1 OR a > 2'", 12)
    "where 'a > 1 ..."
    """
    return what if len(what) <= longest else f"{what[:longest]} ..."


def at_most(text: str) -> dict[str, float]:
    """Return the upper limits of columns that a conjunction of comparisons sets.

    >>> at_most("ttft_p99_s <= 800ms AND NOT saturated AND tp > 1")
    {'ttft_p99_s': 0.8}
    >>> at_most("ttft_p99_s <= 1 OR tp = 1")
    {}
    """
    parts = re.split(r"\bAND\b", spelt(text), flags=re.IGNORECASE)
    if re.search(r"[()]|\b(OR|XOR|CASE|BETWEEN)\b", text, re.IGNORECASE):
        return {}
    limits: dict[str, float] = {}
    for part in parts:
        if match := re.fullmatch(r"\s*([\w.]+)\s*<=?\s*([\d.]+(?:[eE][-+]?\d+)?)\s*", part):
            limits[match[1]] = min(float(match[2]), limits.get(match[1], math.inf))
    return limits


def ranges(text: str) -> dict[str, tuple[float, float]] | None:
    """Return the range of each column in a conjunction of comparisons; None for other conditions.

    The ends of a range are included. A condition on a Boolean column is a range of 0 and 1.

    >>> ranges("ttft_p99_s <= 800ms AND NOT saturated AND tp >= 2")
    {'ttft_p99_s': (-inf, 0.8), 'saturated': (0.0, 0.0), 'tp': (2.0, inf)}
    >>> ranges("gpu = 'h100_sxm'"), ranges("tp < 1 OR tp > 4")
    (None, None)
    """
    found: dict[str, tuple[float, float]] = {}
    for part in re.split(r"\bAND\b", spelt(text), flags=re.IGNORECASE):
        flag = re.fullmatch(r"\s*(NOT\s+)?([^\W\d][\w.]*)\s*", part, re.IGNORECASE)
        match = re.fullmatch(r"\s*([\w.]+)\s*(<=?|>=?|=)\s*(-?[\d.]+(?:[eE][-+]?\d+)?)\s*", part)
        if flag and flag[2].upper() not in WORDS:
            name, low, high = flag[2], float(not flag[1]), float(not flag[1])
        elif match:
            name, sign, end = match[1], match[2], float(match[3])
            low = (
                -math.inf if "<" in sign else math.nextafter(end, math.inf) if sign == ">" else end
            )
            high = (
                math.inf if ">" in sign else math.nextafter(end, -math.inf) if sign == "<" else end
            )
        else:
            return None
        before = found.get(name, (-math.inf, math.inf))
        found[name] = max(low, before[0]), min(high, before[1])
    return found


def excess(where: str, rows: pl.DataFrame) -> NDArray[np.float64]:
    """Return the summed logarithm of the factors by which each row exceeds the limits.

    >>> times = pl.DataFrame({"ttft_p99_s": [0.5, math.e, None]})
    >>> excess("ttft_p99_s <= 1", times).round(6).tolist()
    [0.0, 1.0, 0.0]
    """
    total = np.zeros(len(rows))
    for name, limit in at_most(where).items():
        if name in rows.columns and limit > 0.0:
            factor = rows[name].cast(pl.Float64).to_numpy() / limit
            total += np.log(np.fmax(factor, 1.0))
    return total


def joined(*conditions: str | None) -> str | None:
    """Return the conjunction of conditions; None without a condition.

    >>> joined("tp > 1", None), joined("tp > 1", "pp = 1 OR tp = 2")
    ('tp > 1', '(tp > 1) AND (pp = 1 OR tp = 2)')
    """
    kept = [c for c in conditions if c]
    return " AND ".join(f"({c})" for c in kept) if len(kept) > 1 else next(iter(kept), None)


def check_columns(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise `UserError` for the first unknown column, with the nearest known name."""
    for name in names:
        if name not in known:
            raise unknown(f"{what}: there is no column '{name}'", name, known)


def _strange_words(text: str, what: str) -> list[str]:
    """Return the words of an expression that must be columns. Raises for unknown functions."""
    if len(text) > LONGEST:
        raise UserError(f"{shown(what)} is longer than {LONGEST:,} characters")
    tokens = list(_tokens(text, what))
    strange = []
    for (kind, part), (_, following) in itertools.pairwise([*tokens, ("", "")]):
        if kind != "word" or part.upper() in WORDS:
            continue
        if following != "(":
            strange.append(part)
        elif part.upper() not in FUNCTIONS:
            message = f"{shown(what)} calls '{part[:40]}', which is no function of single values"
            raise unknown(message, part.upper(), sorted(FUNCTIONS), "Functions")
    depths = itertools.accumulate((part == "(") - (part == ")") for _, part in tokens)
    deepest = max(depths, default=0)
    operators = sum(
        kind == "word" or (kind == "sign" and part not in "(),") for kind, part in tokens
    )
    if deepest > DEEPEST or operators > MOST:
        raise UserError(
            f"{shown(what)} is too long: {operators:,} words and operators of at most {MOST}, "
            f"brackets {deepest} deep of at most {DEEPEST}"
        )
    return strange


def _quoted(match: re.Match[str]) -> str:
    """Return a dotted name in quotes: SQL would read it as a column of a table."""
    return f'"{match[0]}"' if match["name"] else match[0]


def _tokens(text: str, what: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text.startswith(("--", "/*"), at):
            raise UserError(f"{shown(what)} is not an SQL expression: what is {text[at : at + 9]}?")
        at = match.end()
        if match.lastgroup not in (None, "blank"):
            yield str(match.lastgroup), match.group()


def _said(error: BaseException) -> str:
    return shown((str(error).splitlines() or [""])[0], 200)
