"""Pipeline schedules: bubbles of even stages, and hand-worked steps tick by tick."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.training.pipeline import COLUMNS, DENSE, HEAD, LANES, SEND, pipelines_s, play
from simulators.training.schedule import (
    DUALPIPE,
    DUALPIPE_V,
    GPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    ZERO_BUBBLE,
    sorted_tasks,
)
from simulators.training.stages import DENSE as DENSE_LAYERS
from simulators.training.stages import EXPERTS, PipelinedModel, chunk_contents, even_sizes


def step(schedule, pp, m, chunks=1, layers=0, send=0.0, passes=(1.0, 1.0, 1.0)):
    parts = np.zeros((1, COLUMNS))
    parts[0, DENSE : DENSE + 3], parts[0, SEND] = passes, send
    layers = layers or pp * chunks
    return played(schedule, pp, m, chunks, layers, parts)


def played(schedule, pp, m, chunks, layers, parts):
    shapes = np.array([[schedule, pp, chunks, m, 0, 0, 0]])
    return float(pipelines_s(shapes, [PipelinedModel(layers, layers)], parts)[0])


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 8), (8, 37), (16, 128), (64, 512)])
@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
def test_bubble_of_even_stages_is_p_minus_one_passes(schedule, pp, m):
    end = step(schedule, pp, m)
    assert end == 3.0 * (m + pp - 1)
    assert (end - 3.0 * m) / end == pytest.approx((pp - 1) / (m + pp - 1), abs=1e-15)


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks):
    pp, m, layers = 4, 16, 32
    end = step(INTERLEAVED, pp, m, chunks, layers)
    work = 3.0 * m * layers / pp
    assert end - work == pytest.approx((pp - 1) * 3.0 * layers / pp / chunks)


@pytest.mark.parametrize(("pp", "m"), [(4, 8), (8, 64), (16, 128)])
def test_zero_bubble_schedule_has_the_smallest_bubble(pp, m):
    end = step(ZERO_BUBBLE, pp, m)
    assert end == 3.0 * m + (pp - 1)  # Qi et al.: (p - 1)(forward + inputs - weights)
    assert end < step(INTERLEAVED, pp, m, 2, 2 * pp) / 2 < step(ONE_F_ONE_B, pp, m)


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (8, 20), (8, 64), (16, 128)])
def test_dualpipe_bubble_matches_the_published_formula(pp, m):
    # (PP/2 - 1)(F&B + B - 3W), of which F = W = 1 and B = 2 (DeepSeek-V3, table 2)
    assert step(DUALPIPE, pp, m) - 3.0 * m == (pp / 2 - 1) * (3 + 2 - 3)
    folded = step(DUALPIPE_V, pp, m, 2, 2 * pp)
    assert folded - 6.0 * m == (pp - 1) * (3 + 2 - 3)


@pytest.mark.parametrize("passes", [(1.0, 1.2, 0.8), (1.0, 1.5, 0.5), (1.0, 0.8, 0.6)])
def test_dualpipe_bubble_is_below_zero_bubble(passes):
    work = 32 * sum(passes)
    waits = [step(s, 8, 32, passes=passes) - work for s in (DUALPIPE, ZERO_BUBBLE, ONE_F_ONE_B)]
    assert waits[0] < 0.8 * waits[1] < waits[1] < waits[2]
    assert waits[0] == pytest.approx(3 * (2 * passes[1] + passes[0] - passes[2]), rel=0.12)


def timeline(schedule, pp, m):
    """Return each rank's tasks as text, a character a tick: forwards, backwards, waits."""
    tasks = sorted_tasks(schedule, pp, 1, m)
    ends, rank_ends = [], [0] * pp
    lines = [""] * pp
    seen = {}
    for rank, duration, needs, _, _ in tasks.tolist():
        start = max(rank_ends[rank], ends[needs] if needs >= 0 else 0)
        kind = duration % 4
        micro = seen[rank, kind] = seen.get((rank, kind), -1) + 1
        lines[rank] += (
            "." * (start - rank_ends[rank])
            + ("01234567", "abcdefgh", "ABCDEFGH", "abcdefgh")[kind][micro]
        )
        rank_ends[rank] = start + 1
        ends.append(start + 1)
    return [line.ljust(max(rank_ends), ".") for line in lines]


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


@pytest.mark.parametrize(("schedule", "pp", "chunks", "m"), [(4, 4, 1, 8), (5, 2, 2, 4)])
def test_dualpipe_order_of_four_ranks_and_eight_micro_batches(schedule, pp, chunks, m):
    # forwards, whole backwards, gradients of inputs and of weights, by stage; pairs by `&`.
    ranks = [""] * pp
    for rank, duration, _, _, is_paired in sorted_tasks(schedule, pp, chunks, m).tolist():
        ranks[rank] += f"{'FIWB'[duration % 4]}{duration // 4}{'&' if is_paired else ' '}"
    outer = "F0 F0 F0 F3 I3 W3 F3 F0&B3 F3&B0 B3 F3&B0 B3 I0 W0 I0 W0 "
    inner = "F1 F2 F1 F2 F1 B2 F2&B1 F1&B2 F2&B1 B2 B1 I2 I1 W2 W1 "
    assert ranks == [outer, inner, inner, outer][:pp]


def test_slightly_slow_rank_delays_a_long_step():
    parts = np.zeros((1, COLUMNS))
    parts[0, DENSE : DENSE + 3], parts[0, HEAD : HEAD + 3] = (1.0, 1.0, 1.0), 0.01
    ends = [played(ONE_F_ONE_B, 4, m, 1, 4, parts) for m in (8, 400, 800)]
    assert ends[2] - ends[1] == pytest.approx(400 * 3.03)  # the last rank's, who has the head
    assert ends[1] - ends[0] == pytest.approx(392 * 3.03, rel=1e-3)


@pytest.mark.parametrize(("schedule", "chunks"), [(INTERLEAVED, 2), (DUALPIPE_V, 2)])
def test_compiled_pipeline_matches_plain_python(schedule, chunks):
    seconds = np.linspace(0.5, 2.0, 8 * 4 * LANES).reshape(1, 8 * 4, LANES)
    compiled, written = np.zeros((1, LANES)), np.zeros((1, LANES))
    send_s = np.linspace(0.0, 0.1, LANES)[None]
    arguments = (4, sorted_tasks(schedule, 4, chunks, 8), seconds, send_s)
    play(*arguments, compiled)
    play.py_func(*arguments, written)
    assert compiled.tolist() == written.tolist()


def test_results_do_not_depend_on_the_rows_played_beside():
    parts = np.random.default_rng(0).random((21, COLUMNS))
    models = [PipelinedModel(9, 2), PipelinedModel(8, 8)]
    rows = [
        [(ONE_F_ONE_B, 4, 1, 8, 0, 0), (DUALPIPE, 4, 1, 8, 0, 0)][n % 2] + (n % 3 // 2,)
        for n in range(21)
    ]
    together = pipelines_s(np.array(rows), models, parts)
    alone = [pipelines_s(np.array([r]), models, parts[n : n + 1])[0] for n, r in enumerate(rows)]
    assert together.tolist() == alone


@pytest.mark.parametrize(("chunks", "each", "last"), [(4, 16, 13), (8, 8, 5), (16, 4, 1)])
def test_last_chunk_has_what_is_left_as_in_nvidias_layouts_of_deepseek_v3(chunks, each, last):
    assert even_sizes(61, chunks) == [each] * (chunks - 1) + [last]


@pytest.mark.parametrize(("layers", "chunks"), [(126, 64), (126, 16), (80, 24), (96, 96), (7, 4)])
def test_layers_of_chunks_sum_to_the_model_with_fewer_at_the_ends(layers, chunks):
    held = chunk_contents(PipelinedModel(layers, dense=3), chunks, 1)
    sizes = held[:, DENSE_LAYERS] + held[:, EXPERTS]
    assert sizes.sum() == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)
    assert held[:, DENSE_LAYERS].sum() == 3
