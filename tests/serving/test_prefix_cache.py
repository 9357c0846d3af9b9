"""The prefix cache equals an ordered dictionary with LRU eviction."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from simulators.core.errors import UserError
from simulators.core.jit import Ints
from tests.serving.lru_prefix_cache import hit_blocks, replay


def drawn(requests: int, seed: int = 7) -> tuple[Ints, Ints]:
    """Return blocks of requests that often begin alike, and where they end."""
    rng = np.random.default_rng(seed)
    prompts = [
        100 * int(rng.integers(6)) + np.arange(int(rng.integers(0, 12))) for _ in range(requests)
    ]
    return np.concatenate(prompts), np.cumsum([prompt.size for prompt in prompts])


def in_a_dictionary(blocks: Ints, ends: Ints, capacity: int) -> list[int]:
    held: OrderedDict[int, None] = OrderedDict()
    hits = []
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        mine = blocks[begin:end].tolist()
        missing = (place for place, block in enumerate(mine) if block not in held)
        hits.append(next(missing, len(mine)))
        for block in mine:
            held.pop(block, None)
            held[block] = None
            if len(held) > capacity:
                held.popitem(last=False)
    return hits


@pytest.mark.parametrize("capacity", [0, 1, 5, 17, 40, 1000])
def test_prefix_hits_match_an_lru_dictionary(capacity: int) -> None:
    blocks, ends = drawn(300)
    assert hit_blocks(blocks, ends, capacity).tolist() == in_a_dictionary(blocks, ends, capacity)


def test_compiled_and_python_prefix_caches_match() -> None:
    blocks, ends = np.array([3, 1, 3, 1, 2, 3]), np.array([2, 5, 6])
    plain, compiled = np.zeros(3, np.int64), np.zeros(3, np.int64)
    assert replay.py_func(blocks, ends, plain, 4, 2) == replay(blocks, ends, compiled, 4, 2) == 2
    assert plain.tolist() == compiled.tolist()


def test_unbounded_cache_hits_all_earlier_prefixes() -> None:
    blocks, ends = drawn(300)
    assert hit_blocks(blocks, ends).tolist() == in_a_dictionary(blocks, ends, blocks.size)
    assert hit_blocks(blocks, ends, 0).sum() == 0


def test_empty_request_list_has_no_hits() -> None:
    none = np.zeros(0, np.int64)
    assert hit_blocks(none, none, 3).size == 0


@pytest.mark.parametrize(("ends", "capacity"), [([2, 1], 3), ([1], 3), ([2], -1)])
def test_invalid_prefix_cache_options_raise_a_user_error(ends: list[int], capacity: int) -> None:
    with pytest.raises(UserError):
        hit_blocks(np.array([1, 2]), np.array(ends), capacity)
