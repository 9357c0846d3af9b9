"""Formats numbers for people: scaled units, three digits, hours and minutes."""

from __future__ import annotations

import math

_SECONDS = ((86_400.0, "d"), (3_600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_FLOPS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1.0, "FLOP"))
_JOULES = (
    (1e12, "TJ"),
    (1e9, "GJ"),
    (1e6, "MJ"),
    (1e3, "kJ"),
    (1.0, "J"),
    (1e-3, "mJ"),
    (1e-6, "µJ"),
    (1e-9, "nJ"),
    (1e-12, "pJ"),
)
_SCALES = {
    "J": _JOULES,
    "s": _SECONDS,
    "B": _BYTES,
    "bytes": _BYTES,
    "flops": _FLOPS,
    "FLOP": _FLOPS,
}


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
