"""Chunk sizes follow the time of a point: small at first, large later, tapering at the end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sweeper.engines.chunks import LARGEST, LAST_S, Chunks
from sweeper.space.points import Batch, Span, split


def numbers(batch: Batch) -> list[int]:
    return (batch.index() if isinstance(batch, Span) else batch).tolist()


@st.composite
def works(draw: st.DrawFn) -> list[Batch]:
    """Ranges, some with points left out, and lists of numbers, none of them overlapping."""
    batches: list[Batch] = []
    at = 0
    for size in draw(st.lists(st.integers(1, 300), max_size=5)):
        if draw(st.booleans()):
            without = draw(st.lists(st.integers(at, at + size - 1), unique=True, max_size=9))
            batches.append(Span(at, at + size, np.array(sorted(without), np.int64)))
        else:
            batches.append(np.arange(at, at + size))
        at += size
    return batches


@given(batches=works(), workers=st.integers(1, 4), data=st.data())
def test_chunks_partition_the_batches(
    batches: list[Batch], workers: int, data: st.DataObject
) -> None:
    chunks = Chunks(iter(batches), sum(map(len, batches)), workers)
    found: list[int] = []
    for chunk in chunks:
        found += numbers(chunk)
        chunks.learn(len(chunk), data.draw(st.floats(0, 10)))
    assert sorted(found) == [n for batch in batches for n in numbers(batch)]
    drawn = {n for batch in batches if not isinstance(batch, Span) for n in batch}
    assert [n for n in found if n in drawn] == sorted(drawn), "what a sampler drew keeps its order"


def test_early_chunks_sample_the_whole_range() -> None:
    chunks, seen = Chunks([Span(0, 64_000)], 64_000), np.zeros(64, bool)
    for count, chunk in enumerate(chunks, 1):
        chunks.learn(len(chunk), len(chunk) * 1e-2)  # 640 s, a few seconds a chunk
        seen[[n // 1000 for n in numbers(chunk)]] = True
        if count == 17:
            assert seen.reshape(16, 4).any(axis=1).all(), "a sixteenth was not looked at"
    assert seen.all()


@given(batches=works(), pieces=st.integers(1, 6))
def test_pieces_reassemble_the_batch(batches: list[Batch], pieces: int) -> None:
    for batch in batches:
        parts = split(batch, pieces)
        assert len(parts) <= pieces
        assert all(len(part) for part in parts)
        assert [n for part in parts for n in numbers(part)] == numbers(batch)


def run(total: int, point_s: float, workers: int = 1) -> list[int]:
    chunks = Chunks([Span(0, total)], total, workers)
    sizes = []
    for chunk in chunks:
        sizes.append(len(chunk))
        chunks.learn(len(chunk), len(chunk) * point_s)
    return sizes


def test_first_chunk_is_small_without_a_time_estimate() -> None:
    assert Chunks([Span(0, 10**6)], 10**6).size() <= 64


def test_first_chunk_takes_a_second_with_a_time_estimate() -> None:
    chunks = Chunks([Span(0, 10**6)], 10**6, point_s=0.2)
    assert chunks.is_known
    assert chunks.size() == 5
    assert not Chunks([Span(0, 10**6)], 10**6).is_known


def test_chunks_grow_as_points_become_cheaper() -> None:
    chunks, found = Chunks([Span(0, 10**7)], 10**7), list[Span]()
    for chunk in chunks:
        assert isinstance(chunk, Span)
        found.append(chunk)
        chunks.learn(len(chunk), 1e-3 + len(chunk) * 1e-7)  # a call is dear, a point is not
    assert max(map(len, found)) > LARGEST / 2
    found.sort(key=lambda chunk: chunk.lo)
    assert all(a.hi == b.lo for a, b in pairwise(found)), "nothing twice, nothing left"


def test_cheap_points_get_large_parts() -> None:
    sizes = run(10**7, 1e-7)
    assert 0.9 * LARGEST < max(sizes) <= LARGEST
    assert len(sizes) < 20


def test_chunk_time_is_bounded() -> None:
    sizes = run(100_000, 1e-2)
    assert 50 <= sizes[1] <= 200
    assert max(sizes) * 1e-2 <= LAST_S * 1.01


def test_points_slower_than_a_second_get_single_chunks() -> None:
    assert set(run(100, 30.0)[1:]) == {1}


def test_chunks_shrink_at_the_end() -> None:
    workers = 4
    sizes = run(100_000, 1e-3, workers)
    assert sizes[-1] < max(sizes) / 2
    last_round = sizes[-2 * workers :]
    assert max(last_round) * 1e-3 <= 1.0


def test_points_sharing_a_simulation_stay_in_one_chunk() -> None:
    chunks = Chunks([Span(0, 9_360)], 9_360, workers=2, together=260)
    found = []
    for chunk in chunks:
        chunks.learn(len(chunk), len(chunk) * 5e-3)
        found.append(chunk)
    assert sorted(n for chunk in found for n in numbers(chunk)) == list(range(9_360))
    whole = [c for c in found if isinstance(c, Span) and c.lo % 260 == c.hi % 260 == 0]
    assert len(whole) > 0.7 * 9_360 / 260


def test_expensive_groups_are_split() -> None:
    chunks = Chunks([Span(0, 1_000)], 1_000, together=500)
    sizes = []
    for chunk in chunks:
        sizes.append(len(chunk))
        chunks.learn(len(chunk), len(chunk) * 0.1)
    assert max(sizes[1:]) * 0.1 <= LAST_S < 500 * 0.1


def test_one_slow_chunk_does_not_shrink_later_chunks() -> None:
    chunks = Chunks([Span(0, 10**6)], 10**6)
    chunks.learn(64, 64e-3)
    chunks.learn(1000, 100.0)
    for _ in range(10):
        chunks.learn(100, 0.1)
    assert chunks.size() > 900
