"""Shares of links, worked out on paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from simulators.collectives.flows import Flow, all_to_all_flows, flow_times, share_links
from simulators.collectives.topology import load_topology
from simulators.core.errors import UserError


@given(integers(1, 40))
def test_incast_gives_each_of_n_senders_an_nth(senders: int) -> None:
    flows = [Flow(1e6, (i, senders)) for i in range(senders)]
    assert flow_times(flows, [1e9] * (senders + 1)) == pytest.approx(senders * 1e-3)


def test_two_to_one_oversubscription_halves_an_all_to_all_between_leaves() -> None:
    times = []
    for over in (1, 2):
        network = load_topology(f"fat_tree:16:1:{over}").dimensions[0]
        times.append(float(flow_times(*all_to_all_flows(network, 1e6)).max()))
    assert times[1] == pytest.approx(2.0 * times[0])


def test_what_one_flow_cannot_use_goes_to_the_others() -> None:
    # Flow 0 is held to 1 by its own link; flow 1 gets the other 9 of the shared link's 10.
    ends = flow_times([Flow(1.0, (0, 1)), Flow(9.0, (1,))], [1.0, 10.0])
    assert ends.tolist() == pytest.approx([1.0, 1.0])


def test_a_flow_speeds_up_when_another_ends() -> None:
    ends = flow_times([Flow(1.0, (0,)), Flow(3.0, (0,)), Flow(1.0, (0,), start_s=4.5)], [1.0])
    assert ends.tolist() == pytest.approx([2.0, 4.0, 5.5])


def test_nonsense_is_refused() -> None:
    with pytest.raises(UserError, match="disconnected"):
        flow_times([Flow(1.0, (0,))], [0.0])
    with pytest.raises(UserError, match="crosses links"):
        flow_times([Flow(1.0, ())], [1.0])
    with pytest.raises(UserError, match="needs some"):
        flow_times([Flow(0.0, (0,))], [1.0])


def test_compiled_flows_are_those_of_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    flows, rates = all_to_all_flows(load_topology("fat_tree:6:2:3").dimensions[0], 1e6)
    compiled = flow_times(flows, rates)
    monkeypatch.setattr("simulators.collectives.flows.share_links", share_links.py_func)
    assert flow_times(flows, rates).tolist() == compiled.tolist()
