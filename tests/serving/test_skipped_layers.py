"""Early exit, mixture-of-depths and prompt pruning: savings per batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.core.errors import Infeasible
from simulators.core.fields import updated
from simulators.core.jit import Floats
from simulators.serving.deployment import deployment_of
from simulators.serving.engine import replica as at
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import DECODED, LAYERS, ROUTED, prices_of, segments_of
from simulators.serving.run import run_of
from simulators.serving.simulator import simulate

PLAIN = ServingPoint(
    model="llama3_1_8b",
    gpu="h100_sxm",
    scheduler="vllm_v1",
    requests=60,
    qps=4.0,
    prompt_tokens=1000,
    output_tokens=100,
)
EXIT = replace(PLAIN, dynamic=replace(PLAIN.dynamic, exit_depth=0.5, exit_depth_std=0.2))


def priced(point: ServingPoint, *, prompts: int = 0, decodes: int = 0) -> np.ndarray:
    """Return the price of a batch of prompts and decodes of 1,000 tokens each."""
    table, price = prices_of(point, deployment_of(point).hardware)
    step = np.zeros(at.STEP_COLUMNS)
    step[at.PREFILLS], step[at.DECODES] = prompts, decodes
    step[at.PREFILL_TOKENS] = step[at.PREFILL_KV] = 1000.0 * prompts
    step[at.PREFILL_PAIRS] = 500_500.0 * prompts
    step[at.DECODE_KV] = 1000.0 * decodes
    step[at.TOKENS] = step[at.ALL_RANK_TOKENS] = 1000.0 * prompts + decodes
    step[at.LOGITS_ROWS] = prompts + decodes
    out = np.zeros(3 * at.PRICE_COLUMNS)
    price(step, table.shape, table.table, out)
    return out[: at.PRICE_COLUMNS]


def busy_s(point: ServingPoint, *, prompts: int = 0, decodes: int = 0) -> float:
    price = priced(point, prompts=prompts, decodes=decodes)
    return float(price[at.BASE_S] + price[at.SLOPE_S] * 1000.0 * decodes)


def depth_of(segments: Floats, decodes: int) -> float:
    """Return the share of layers that a batch of so many decodes is expected to run."""
    skipped = (1.0 - segments[:, DECODED] * segments[:, ROUTED]) ** decodes
    return float(np.sum(segments[:, LAYERS] * (1.0 - skipped)))


def test_run_without_skipped_layers_is_unchanged() -> None:
    neutral = replace(
        PLAIN,
        dynamic=replace(
            PLAIN.dynamic,
            exit_depth=1.0,
            mod_capacity=1.0,
            prune_keep_ratio=1.0,
            prune_after_layer=7,
        ),
    )
    assert simulate(neutral) == simulate(PLAIN)


def test_executing_nearly_all_layers_takes_nearly_full_time() -> None:
    for name in ("dynamic.exit_depth", "dynamic.mod_capacity", "dynamic.prune_keep_ratio"):
        nearly = simulate(updated(PLAIN, {name: 1.0 - 1e-9}))
        plain = simulate(PLAIN)
        assert nearly.e2e_mean_s == pytest.approx(plain.e2e_mean_s, rel=1e-3)
        assert nearly.energy_j_per_token == pytest.approx(plain.energy_j_per_token, rel=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.05, 0.95),
    st.sampled_from([0.0, 0.01, 0.2]),
    st.integers(1, 200),
    st.floats(0.1, 1.0),
)
def test_batch_exit_depth_exceeds_mean_token_depth(
    depth: float, spread: float, batch: int, routed: float
) -> None:
    point = replace(
        PLAIN,
        dynamic=replace(
            PLAIN.dynamic, exit_depth=depth, exit_depth_std=spread, mod_capacity=routed
        ),
    )
    try:
        segments = segments_of(point, 32)
    except Infeasible:
        assert spread**2 >= depth * (1.0 - depth)
        return
    assert segments[:, LAYERS].sum() == pytest.approx(1.0)
    assert segments[:, LAYERS] @ segments[:, DECODED] == pytest.approx(depth)
    depths = [depth_of(segments, n) for n in (1, batch, batch + 1)]
    assert depths[0] <= depths[1] + 1e-12
    assert depths[1] <= depths[2] + 1e-12
    assert depths[2] <= 1.0 + 1e-12


def test_uniform_exit_depth_saves_the_same_share() -> None:
    same = replace(PLAIN, dynamic=replace(PLAIN.dynamic, exit_depth=0.5))
    for batch in (1, 8, 64):
        saved_s = busy_s(PLAIN, decodes=batch) - busy_s(same, decodes=batch)
        layers_s = 2.0 * saved_s
        head_s = busy_s(PLAIN, decodes=batch) - layers_s
        assert 0.0 < head_s < 0.2 * layers_s  # 525 M of 7.5 G weights


def test_early_exit_gain_falls_with_batch_size() -> None:
    gains = [busy_s(PLAIN, decodes=n) / busy_s(EXIT, decodes=n) for n in (1, 2, 8, 32)]
    assert all(fewer > more for fewer, more in pairwise(gains))
    assert 1.7 < gains[0] < 2.0  # half the layers, and a whole head
    assert depth_of(segments_of(EXIT, 32), 64) > 0.85  # of 64 tokens one goes deep
    assert busy_s(EXIT, prompts=1) == pytest.approx(busy_s(PLAIN, prompts=1))


def test_mixture_of_depths_halves_long_prefills_but_not_large_decodes() -> None:
    routed = replace(PLAIN, dynamic=replace(PLAIN.dynamic, mod_capacity=0.125))
    # Of half the layers an eighth is left: 0.5625 of the products, less of attention and its keys.
    assert 0.5 < busy_s(routed, prompts=8) / busy_s(PLAIN, prompts=8) < 0.62
    assert 0.55 < busy_s(routed, decodes=1) / busy_s(PLAIN, decodes=1) < 0.65
    assert busy_s(routed, decodes=64) / busy_s(PLAIN, decodes=64) > 0.75  # weights are read anyway
    blocks = [run_of(point).metrics().kv_blocks for point in (PLAIN, routed)]
    assert blocks[1] / blocks[0] == pytest.approx(1.0 / 0.5625, rel=0.01)


def test_prompt_pruning_speeds_up_prefill_only() -> None:
    pruned = replace(PLAIN, dynamic=replace(PLAIN.dynamic, prune_keep_ratio=0.5))
    assert 0.5 < busy_s(pruned, prompts=8) / busy_s(PLAIN, prompts=8) < 0.6
    assert busy_s(pruned, decodes=8) == pytest.approx(busy_s(PLAIN, decodes=8))
    late = replace(pruned, dynamic=replace(pruned.dynamic, prune_after_layer=32))
    assert busy_s(late, prompts=8) == pytest.approx(busy_s(PLAIN, prompts=8))


def test_lower_exit_depth_is_never_slower() -> None:
    for name in ("dynamic.exit_depth", "dynamic.mod_capacity", "dynamic.prune_keep_ratio"):
        times = [simulate(updated(PLAIN, {name: s})).e2e_mean_s for s in (0.25, 0.5, 0.75, 1.0)]
        assert times == sorted(times), name


def test_unsupported_layer_skipping_options_are_refused() -> None:
    for changes, reason in (
        ({"pp": 2}, "skipped_layers_need_pp_1"),
        ({"speculation.method": "ngram"}, "skipped_layers_need_no_drafts"),
        ({"lora.adapters": 2}, "skipped_layers_need_no_adapters"),
        ({"scheduling.mixed_step": "additive"}, "skipped_layers_need_one_pass"),
        ({"dynamic.exit_depth_std": 0.49, "dynamic.exit_depth": 0.9}, "exit_spread_too_wide"),
        ({"fidelity": "analytic"}, "exit_depth_needs_fidelity_event"),
    ):
        with pytest.raises(Infeasible, match=reason):
            simulate(updated(EXIT, changes))
