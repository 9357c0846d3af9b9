"""Format column names and reason codes for people.

A column name ends in a unit; reports print the unit with each value instead.
"""

from __future__ import annotations

_UNITS = {
    "s": ("s",),
    "J": ("j",),
    "J s": ("js",),
    "B/s": ("bytes", "per", "s"),
    "$": ("usd",),
    "h": ("h",),
    "g": ("g",),
    "nm": ("nm",),
    "mm2": ("mm2",),
}
"""Words of a column name that state the unit."""
_ABBREVIATIONS = (
    "CP DP DRAM E2E EDP EP FLOPs GPU GPUs HBM ITL KV L2 LoRA MACs MFU MTBF PE PP QPS SLO SM TP "
    "TPOT TTFT"
)
_SPOKEN = {word.lower(): word for word in _ABBREVIATIONS.split()} | {
    "algbw": "algorithm bandwidth",
    "busbw": "bus bandwidth",
    "ci": "± of the mean",
    "comm": "communication",
    "hi": "upper end",
    "lo": "lower end",
    "mtok": "million tokens",
    "s": "second",
    "usd": "dollars",
}
_VERBLESS = ("below", "not", "out", "too", "unsupported")
"""Words of a reason code that need a verb in front."""
_SPANS = ("latency", "makespan", "time")
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
    said = list(_UNITS.get(unit, ()))
    for start in range(len(words) - len(said), 0, -1):
        if said and words[start : start + len(said)] == said:
            del words[start : start + len(said)]
            break
    if unit == "s" and len(words) == 1 and words[0] not in (*_SPANS, *_SPOKEN):
        words.append("time")
    return ", ".join([" ".join(_SPOKEN.get(word, word) for word in words), *ends])


def reason_in_words(reason: str) -> str:
    """Return the reason of an infeasible point as a sentence: the code and the figures.

    >>> reason_in_words("weights_exceed_hbm: needs 171 GB, has 80 GB")
    'weights exceed HBM (needs 171 GB, has 80 GB)'
    >>> reason_in_words("no_kv_memory"), reason_in_words("micro_batches_too_few_to_pair")
    ('there is no KV memory', 'micro batches are too few to pair')
    """
    code, _, detail = reason.partition(": ")
    words = code.split("_")
    at = next((i for i, word in enumerate(words) if word in _VERBLESS), 0)
    if at:
        words.insert(at, "are" if words[at - 1].endswith("s") else "is")
    elif words[0] in ("no", "one", "too") and len(words) > 1 and "is" not in words:
        words = ["there", "are" if words[0] == "too" else "is", *words]
    said = " ".join("precision" if word == "dtype" else _SPOKEN.get(word, word) for word in words)
    return said + (f" ({detail})" if detail else "")
