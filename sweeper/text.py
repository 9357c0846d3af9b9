"""Text for people: numbers with units, column names and reasons in words, and safe output.

`human` formats numbers with a scaled unit and three digits; `number_in` reads numbers as people
type them. `in_words` prints a column name without its unit, which reports print with each value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from simulators.core.folder import read_toml

TEXTS: Mapping[str, Any] = read_toml(Path(__file__).with_suffix(".toml"))

_PREFIXES = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, " ": 1.0}
_PREFIXES |= {"m": 1e-3, "µ": 1e-6, "n": 1e-9, "p": 1e-12}


def _scale(prefixes: str, unit: str) -> list[tuple[float, str]]:
    """Return the sizes and names of a unit with SI prefixes, largest first."""
    return [(_PREFIXES[prefix], f"{prefix.strip()}{unit}") for prefix in prefixes]


_SCALES = {
    "J": _scale("TGMk mµnp", "J"),
    "s": [(86_400.0, "d"), (3_600.0, "h"), *_scale(" mµn", "s")],
    **dict.fromkeys(("B", "bytes"), _scale("TGMk ", "B")),
    **dict.fromkeys(("flops", "FLOP"), _scale("PTGM ", "FLOP")),
}
"""Sizes and names of scaled units by unit of the column, largest first."""


def human(value: object, unit: str = "") -> str:
    """Return a value as text with a scaled unit.

    >>> human(0.0123, "s"), human(80e9, "bytes"), human(1234567, ""), human(None)
    ('12.3 ms', '80 GB', '1,234,567', '-')
    >>> human(37_825.0, "s"), human(2_592_000.0, "s"), human(6.14e9, "J")
    ('10.5 h', '30 d', '6.14 GJ')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value == 0:
        return "0"
    scale = _SCALES.get(unit.removesuffix("/s"))
    if scale:
        size, name = next((step for step in scale if abs(value) >= step[0]), scale[-1])
        return f"{digits(value / size)} {name}" + ("/s" if unit.endswith("/s") else "")
    if unit in ("$", "USD"):
        return f"${digits(value)}"
    if unit == "1/s":
        return f"{digits(value)}/s"
    return f"{digits(value)} {unit}".rstrip()


def counted(count: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural.

    >>> counted(1, "design"), counted(1200, "design")
    ('1 design', '1,200 designs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def digits(value: float) -> str:
    """Return a number with three significant digits, and thousands grouped.

    >>> digits(1234.5), digits(0.012345), digits(12.0)
    ('1,234', '0.0123', '12')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """Return a span of time as hours, minutes and seconds.

    >>> duration(3725), duration(59.4), duration(0.25)
    ('1 h 2 min', '59 s', '0.2 s')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


SUFFIXES: Mapping[str, Mapping[str, float]] = TEXTS["suffixes"]
"""Suffixes and their factors by unit of the field, case-insensitive."""
COUNTS, TIMES = SUFFIXES[""], SUFFIXES["s"]

_NUMBER = re.compile(
    r"^\s*\$?([-+]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-zµ/]*)\s*$", re.I
)


def number_in(text: str, unit: str = "") -> float | None:
    """Return the number in a text, in base units; None if the text is not a number.

    >>> number_in("800ms", "s"), number_in("10k"), number_in("1.5 s", "s"), number_in("2 GPUs")
    (0.8, 10000.0, 1.5, None)
    """
    match = _NUMBER.match(text)
    if match is None:
        return None
    suffix = match[2].casefold()
    scale = SUFFIXES.get(unit, COUNTS).get(suffix) if suffix else 1.0
    return None if scale is None else float(match[1].replace(",", "").replace("_", "")) * scale


_UNIT_WORDS: Mapping[str, str] = TEXTS["units"]
_SPOKEN = {word.lower(): word for word in TEXTS["abbreviations"].split()} | TEXTS["spoken"]
_VERBS = ("does", "do", "fits", "is", "are")
_VERBLESS = ("below", "not", "out", "too", "unsupported")
"""Words of a reason code that need a verb in front."""
_DURATIONS = ("latency", "makespan", "time")
"""Words that need no further `time`."""


def in_words(name: str, unit: str = "") -> str:
    """Return the printed name of a column.

    >>> in_words("ttft_p99_s", "s"), in_words("cost_usd_per_mtok", "$")
    ('TTFT p99', 'cost per million tokens')
    >>> in_words("tokens_per_s_per_gpu", "1/s"), in_words("step_s_hi", "s")
    ('tokens per second per GPU', 'step time, upper end')
    """
    words = name.split("_")
    ends = [_SPOKEN[words.pop()]] if len(words) > 2 and words[-1] in ("lo", "hi", "ci") else []
    said = _UNIT_WORDS[unit].split("_") if unit in _UNIT_WORDS else []
    for start in range(len(words) - len(said), 0, -1):
        if said and words[start : start + len(said)] == said:
            del words[start : start + len(said)]
            break
    if unit == "s" and len(words) == 1 and words[0] not in (*_DURATIONS, *_SPOKEN):
        words.append("time")
    return ", ".join([" ".join(_SPOKEN.get(word, word) for word in words), *ends])


def reason_in_words(reason: str) -> str:
    """Return the reason of an infeasible point as a sentence: the code and the figures.

    >>> reason_in_words("weights_exceed_hbm: needs 171 GB, has 80 GB")
    'weights exceed HBM (needs 171 GB, has 80 GB)'
    >>> reason_in_words("tp_does_not_divide_heads")
    'TP does not divide heads'
    >>> reason_in_words("no_kv_memory"), reason_in_words("micro_batches_too_few_to_pair")
    ('there is no KV memory', 'micro batches are too few to pair')
    >>> reason_in_words("no_request_fits")
    'no request fits'
    """
    code, _, detail = reason.partition(": ")
    words = code.split("_")
    at = next((i for i, word in enumerate(words) if word in _VERBLESS), 0)
    at = 0 if words[at - 1] in _VERBS else at
    if at:
        words.insert(at, "are" if words[at - 1].endswith("s") else "is")
    elif words[0] in ("no", "one", "too") and len(words) > 1 and not {*words} & {*_VERBS}:
        words = ["there", "are" if words[0] == "too" else "is", *words]
    said = " ".join("precision" if word == "dtype" else _SPOKEN.get(word, word) for word in words)
    return said + (f" ({detail})" if detail else "")


_OURS = re.compile(r"(\x1b\[[0-9;]*m)")
"""Bold and faint, the only escape sequences that sweeper prints."""


def printable(text: str) -> str:
    r"""Return text with control characters replaced; line breaks stay.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


class Quoting:
    """A stream to a terminal that passes text, bold and faint only."""

    def __init__(self, stream: TextIO) -> None:
        self.unquoted = stream

    def write(self, text: str) -> int:
        """Write text with control characters replaced."""
        pieces = _OURS.split(text)
        pieces[::2] = map(printable, pieces[::2])
        return self.unquoted.write("".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unquoted, name)


def quoting(stream: TextIO) -> TextIO:
    """Return a stream that replaces control characters if it is a terminal."""
    return Quoting(stream) if stream.isatty() else stream  # type: ignore[return-value]
