"""The tables of measured passes, and the runtime each was measured under."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.tables.whole_passes import (
    CONCURRENT,
    SPLITWISE,
    STATIC,
    TINYCHAT,
    Case,
    concurrent,
    splitwise,
    static_batches,
    tinychat,
)


@dataclass(frozen=True)
class Table:
    """One check: where its rows are, how they are read, what launched them, and what is asked."""

    name: str
    path: str
    read: Callable[[Path], list[Case]]
    runtime: str
    limit: float  # of the mean error in percent

    @functools.cache  # noqa: B019 - tables are few and last; cases remember their prices
    def cases(self, reference: Path) -> Sequence[Case]:
        """Return its rows, read and priced once."""
        return tuple(self.read(reference))


TABLES = (
    Table("llama2_70b_token_time", SPLITWISE, lambda r: splitwise(r, "token"), "eager_tp", 15.0),
    Table("llama2_70b_prompt_time", SPLITWISE, lambda r: splitwise(r, "prompt"), "eager_tp", 12.0),
    Table("decode_w4a16", TINYCHAT, lambda r: tinychat(r, "int4_awq_ms_per_token"), "eager", 15.0),
    Table("decode_fp16", TINYCHAT, lambda r: tinychat(r, "fp16_ms_per_token"), "eager", 15.0),
    Table("llama3_1_tpot_h100", CONCURRENT, lambda r: concurrent(r, "h100_sxm"), "graphs", 9.0),
    Table("llama3_1_tpot_b200", CONCURRENT, lambda r: concurrent(r, "b200_sxm"), "graphs", 13.0),
    Table("static_batch", STATIC, lambda r: static_batches(r, "v0.9.0"), "graphs", 12.0),
)
