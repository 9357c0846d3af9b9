"""Rows of a benchmark of experts, by version and parallelism."""

from __future__ import annotations

import numpy as np
import pytest

from lab.tables.kernels import EXPERTS, products_of, timed
from lab.tables.rows import Rows

LAYER = {"hidden_size": 7168.0, "inter_size": 2048.0, "topk": 8.0, "num_experts": 256.0}


def layers(framework: str, version: str, dtype: str, tokens: float, ranks: list[float]) -> Rows:
    layout = np.array(ranks)
    sizes = {name: np.full(layout.size, LAYER.get(name, 1.0)) for name in EXPERTS}
    sizes |= {"num_tokens": np.full(layout.size, tokens), "moe_ep_size": layout}
    seconds = np.ones(layout.size)
    return timed(
        sizes, seconds, "experts", dtype, gpu="h100_sxm", framework=framework, version=version
    )


def dealt(rows: Rows) -> tuple[list[float], list[float]]:
    up, down = products_of(rows)
    assert up.rows.tolist() == down.rows.tolist()
    return up.rows.tolist(), up.activated.tolist()


def test_a_rank_has_its_share_of_the_rows() -> None:
    rows = layers("trtllm", "1.3.0rc20", "bf16", 512.0, [1.0, 4.0, 64.0])
    assert dealt(rows) == ([4096.0, 1024.0, 64.0], [256.0, 64.0, 4.0])


def test_one_version_gave_rows_again_up_to_as_often_as_tokens_choose() -> None:
    rows = layers("sglang", "0.5.10", "bf16", 512.0, [1.0, 4.0, 8.0, 16.0])
    assert dealt(rows) == ([4096.0, 4096.0, 4096.0, 2048.0], [256.0, 64.0, 32.0, 16.0])


def test_routing_by_groups_gives_the_timed_rank_half_of_all_choices() -> None:
    rows = layers("vllm", "0.24.0", "fp8_block", 512.0, [1.0, 2.0, 8.0, 256.0])
    given, activated = dealt(rows)
    assert given == [4096.0, 4096.0, 2560.0, 512.0]
    assert activated == [128.0, 128.0, 32.0, 1.0]
    few = layers("vllm", "0.24.0", "fp8_block", 1.0, [1.0])
    assert dealt(few)[1] == pytest.approx([8.0])
