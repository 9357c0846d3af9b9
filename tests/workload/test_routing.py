"""Balance of expert routing, and the messages between expert-parallel ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulators.catalog.model import load_model
from simulators.core.errors import Infeasible, UserError
from simulators.workload.llm.memory import weight_bytes
from simulators.workload.llm.parallelism import (
    LOW_LATENCY,
    Parallelism,
    Routing,
    check_layout,
    counted_tokens,
    skewed_share,
)
from simulators.workload.llm.step import decode_step
from simulators.workload.llm.transformer import forward
from simulators.workload.operators import Collective, ExpertExchange, GroupedGemm

MODEL = load_model("deepseek_v3")
CUT = Parallelism(tp=2, ep=16, attention_dp=8, routing=Routing(LOW_LATENCY))


def test_zipf_skew_matches_random_draws() -> None:
    """Busiest of devices over the mean, drawn: 256 experts, 8 a token, 32 ranks: 3.85 at 1."""
    assert skewed_share(256, 8, 32, 1.0) == pytest.approx(3.85, rel=0.2)
    assert skewed_share(256, 8, 32, 0.5) < skewed_share(256, 8, 32, 1.0)


def test_token_counts_are_assigned_to_ranks_in_order() -> None:
    counted = tuple([2.0] * 8 + [1.0] * 248)
    first = 8 * 2.0 / (sum(counted) / 32)
    assert skewed_share(256, 8, 32, 0.0, counted=counted) == pytest.approx(first)
    assert skewed_share(256, 8, 32, 0.0, counted=(1.0,) * 256) == pytest.approx(1.0)
    assert skewed_share(256, 8, 32, 0.0, redundant=32, counted=counted) < first


def test_token_counts_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "counts.csv"
    file.write_text("3\n1\n2e3\n")
    assert counted_tokens(str(file)) == counted_tokens("3,1,2000") == (3.0, 1.0, 2000.0)
    for wrong in (str(tmp_path / "none.csv"), "1,,2", "-1,2", "0,0"):
        with pytest.raises(UserError, match="routing_histogram"):
            counted_tokens(wrong)


def test_redundant_experts_balance_ranks_and_take_memory() -> None:
    shares = [skewed_share(256, 8, 32, 1.0, redundant=r) for r in (0, 32, 64)]
    assert shares[0] > shares[1] >= shares[2] >= 1.0
    bytes_without, bytes_with = (
        weight_bytes(MODEL, replace(CUT, routing=Routing(redundant=r)), "fp8") for r in (0, 16)
    )
    per_rank = MODEL.expert_layers * MODEL.expert_parameters  # one copy more a rank, a byte each
    assert bytes_with - bytes_without == pytest.approx(per_rank)


def test_ranks_of_a_group_send_a_share_of_the_tokens() -> None:
    operators = forward(MODEL, CUT, decode_step(64.0, 1000.0), "fp8", "fp8")
    sent = [o for o in operators if isinstance(o, ExpertExchange)]
    assert [(o.name, o.tokens, o.ranks) for o in sent] == [
        ("experts_dispatch", 32.0, 16),
        ("experts_combine", 32.0, 16),
    ]
    assert sent[0].size_bytes == pytest.approx(32 * 7168 * (1 + 4 / 128))
    assert (sent[0].groups, sent[0].chosen) == (8, 4)
    gathered = [o for o in operators if isinstance(o, Collective) and o.name == "experts_gather"]
    assert [(o.ranks, o.repeat) for o in gathered] == [(2, 58)]
    experts = [o for o in operators if isinstance(o, GroupedGemm)]
    assert {o.experts for o in experts} == {16}


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Parallelism(tp=8, ep=8, routing=Routing(LOW_LATENCY)), "moe_backend_needs_ep"),
        (Parallelism(attention_dp=8, routing=Routing(LOW_LATENCY)), "moe_backend_needs_ep"),
        (Parallelism(tp=8, routing=Routing(redundant=8)), "redundant_experts_need_ep"),
        (replace(CUT, routing=Routing(counted=(1.0,))), "routing_histogram_of_other_experts"),
        (
            replace(CUT, routing=Routing(counted=(1.0,) + (0.0,) * 255)),
            "routing_histogram_above_tokens",
        ),
        (
            replace(CUT, routing=Routing(skew=1.0, counted=(1.0,) * 256)),
            "routing_histogram_beside_skew",
        ),
        (replace(CUT, routing=Routing(redundant=8)), "ep_does_not_divide_experts"),
    ],
)
def test_unsupported_all_to_all_is_refused(layout: Parallelism, why: str) -> None:
    with pytest.raises(Infeasible, match=why):
        check_layout(MODEL, layout)
