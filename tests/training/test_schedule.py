"""Pipelines played out: bubbles of even stages, and hand-worked steps tick by tick."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.training.schedule.orders import (
    GPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    ZERO_BUBBLE,
    fill_orders,
)
from simulators.training.schedule.play import (
    COLUMNS,
    DENSE,
    SEND,
    SYNC,
    layers_of_chunk,
    play,
    step_s,
    steps_s,
)


def step(schedule, pp, m, chunks=1, layers=0, send=0.0, passes=(1.0, 1.0, 1.0), sync=0.0):
    parts = np.zeros((1, COLUMNS))
    parts[0, DENSE : DENSE + 3], parts[0, SEND], parts[0, SYNC : SYNC + 3] = passes, send, sync
    out = np.zeros((1, 2))
    layers = layers or pp * chunks
    steps_s(*(np.array([n]) for n in (schedule, pp, chunks, m, layers, layers)), parts, out)
    return out[0]


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 8), (8, 37), (16, 128), (64, 512)])
@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
def test_the_bubble_of_even_stages_is_p_less_one_passes(schedule, pp, m):
    end, _ = step(schedule, pp, m)
    assert end == 3.0 * (m + pp - 1)
    assert (end - 3.0 * m) / end == pytest.approx((pp - 1) / (m + pp - 1), abs=1e-15)


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks):
    pp, m, layers = 4, 16, 32
    end, _ = step(INTERLEAVED, pp, m, chunks, layers)
    work = 3.0 * m * layers / pp
    assert end - work == pytest.approx((pp - 1) * 3.0 * layers / pp / chunks)


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 64), (16, 128)])
def test_zero_bubble_is_below_both(pp, m):
    end, _ = step(ZERO_BUBBLE, pp, m)
    assert end == 3.0 * m + (pp - 1)  # Qi et al.: (p - 1)(forward + inputs - weights)
    assert end < step(INTERLEAVED, pp, m, 2, 2 * pp)[0] / 2 < step(ONE_F_ONE_B, pp, m)[0]


def timeline(schedule, pp, m, chunks=1):
    """Return each rank's tasks as text, a character a tick: forwards, backwards, waits."""
    kinds = 3 if schedule == ZERO_BUBBLE else 2
    orders = np.zeros((pp, kinds * m * chunks, 3), np.int64)
    count = fill_orders(schedule, pp, chunks, m, orders)
    ends, rank_ends = np.zeros((kinds * pp * chunks, m)), np.zeros(pp)
    end = play(pp, chunks, orders, count, np.ones((pp * chunks, 3)), 0.0, ends, rank_ends)
    lines = []
    for rank in range(pp):
        line = ["."] * int(end)
        for kind, chunk, micro in orders[rank, :count]:
            at = int(ends[kind * pp * chunks + chunk * pp + rank, micro]) - 1
            assert line[at] == "."
            line[at] = ("01234567", "abcdefgh", "ABCDEFGH")[kind][micro]
        lines.append("".join(line))
    return lines


def test_four_stages_and_eight_micro_batches_of_1f1b_tick_by_tick():
    assert timeline(ONE_F_ONE_B, 4, 8) == [
        "0123...a4b5c6d7e.f.g.h",
        ".012..a3b4c5d6e7f.g.h.",
        "..01.a2b3c4d5e6f7g.h..",
        "...0a1b2c3d4e5f6g7h...",
    ]


def test_four_stages_and_eight_micro_batches_of_gpipe_tick_by_tick():
    assert timeline(GPIPE, 4, 8) == [
        "01234567......abcdefgh",
        ".01234567....abcdefgh.",
        "..01234567..abcdefgh..",
        "...01234567abcdefgh...",
    ]


def test_four_stages_and_eight_micro_batches_of_zero_bubble_tick_by_tick():
    assert timeline(ZERO_BUBBLE, 4, 8) == [
        "0123...aA4bB5cC6dD7eEfFgGhH",
        ".012..a3bA4cB5dC6eD7fEgFhGH",
        "..01.a2b3cA4dB5eC6fD7gEhFGH",
        "...0a1b2c3dA4eB5fC6gD7hEFGH",
    ]


def test_a_long_step_is_carried_on_exactly():
    draw = np.random.default_rng(0)
    for _ in range(30):
        pp, chunks = int(draw.choice([2, 4, 8])), int(draw.choice([1, 2]))
        schedule = INTERLEAVED if chunks > 1 else int(draw.choice([ONE_F_ONE_B, ZERO_BUBBLE]))
        m, layers = pp * int(draw.integers(6, 30)), pp * chunks * 2
        parts = draw.uniform(0.5, 2.0, (1, COLUMNS))
        parts[0, SEND] = 0.01
        whole, out = np.zeros(2), np.zeros((1, 2))
        step_s(schedule, pp, chunks, m, layers, layers, parts[0], whole)
        steps_s(*(np.array([n]) for n in (schedule, pp, chunks, m, layers, layers)), parts, out)
        assert out[0] == pytest.approx(whole, rel=1e-9)


def test_the_compiled_pipeline_is_the_written_one():
    parts = np.linspace(0.5, 2.0, COLUMNS)
    compiled, written = np.zeros(2), np.zeros(2)
    step_s(INTERLEAVED, 4, 2, 8, 14, 2, parts, compiled)
    step_s.py_func(INTERLEAVED, 4, 2, 8, 14, 2, parts, written)
    assert compiled.tolist() == written.tolist()


def test_what_follows_the_last_task_waits_for_its_rank_alone():
    end, step_end = step(ONE_F_ONE_B, 4, 8, sync=5.0)
    assert step_end == end + 5.0


@pytest.mark.parametrize(("layers", "chunks"), [(126, 64), (126, 16), (61, 8), (96, 96), (7, 4)])
def test_layers_of_chunks_add_up_and_are_short_at_the_ends(layers, chunks):
    sizes = [layers_of_chunk(c, chunks, layers, layers) for c in range(chunks)]
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)
    dense = [layers_of_chunk(c, chunks, layers, 3) for c in range(chunks)]
    assert sum(dense) == 3
