"""The edge simulator fulfils the contract and uses the accuracies of the user."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planning.calibrate.edge import text_of
from simulators.core.columns import batch_of
from simulators.core.errors import UserError
from simulators.edge.simulator import SIMULATOR, EdgePoint, cell_text, device


def test_cell_notations_are_equivalent() -> None:
    text = cell_text(["none", "none", "none", "nor_conv_3x3", "none", "none"])
    by_text = SIMULATOR.evaluate(batch_of(EdgePoint, {"device": "raspi4", "network": text}))
    by_edge = SIMULATOR.evaluate(
        batch_of(EdgePoint, {"device": "raspi4", "op_0_3": "nor_conv_3x3"})
    )
    assert by_text.equals(by_edge)


def test_accuracies_come_from_the_user(tmp_path: Path) -> None:
    file, text = tmp_path / "mine.csv", cell_text(["none"] * 6)
    file.write_text(f"network,accuracy\n{text},0.91\n")
    point = {"device": "fpga", "accuracy": str(file)}
    [row] = SIMULATOR.evaluate(batch_of(EdgePoint, point)).to_pylist()
    assert row["accuracy_proxy"] == 0.91
    [row] = SIMULATOR.evaluate(batch_of(EdgePoint, point | {"op_0_1": "skip_connect"})).to_pylist()
    assert row["accuracy_proxy"] is None
    file.write_text("name,accuracy\na,1\n")
    with pytest.raises(UserError, match="two columns"):
        SIMULATOR.evaluate(batch_of(EdgePoint, {**point, "accuracy": str(file), "op_0_1": "none"}))


@pytest.mark.parametrize("accuracy", ["nan", "inf", "-0.5"])
def test_accuracy_is_a_finite_number(tmp_path: Path, accuracy: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(f"network,accuracy\na,{accuracy}\n")
    with pytest.raises(UserError, match="accuracy of a is"):
        SIMULATOR.evaluate(batch_of(EdgePoint, {"device": "fpga", "accuracy": str(file)}))


@pytest.mark.parametrize(
    "change", [{"d": [2, 2, 2, 2, 9]}, {"ks": [-3] * 20}, {"e": [100] * 20}, {"r": 1e6}, {"r": "x"}]
)
def test_networks_outside_of_the_search_space_are_refused(change: dict[str, object]) -> None:
    network = {"ks": [3] * 20, "e": [3] * 20, "d": [2] * 5, "r": 224} | change
    point = {"device": "v100_1", "search_space": "ofa", "network": json.dumps(network)}
    with pytest.raises(UserError, match="no network of OFA"):
        SIMULATOR.evaluate(batch_of(EdgePoint, point))


def test_other_search_spaces_require_a_matching_network() -> None:
    with pytest.raises(UserError, match="network is missing"):
        SIMULATOR.evaluate(batch_of(EdgePoint, {"device": "pixel2", "search_space": "fbnet"}))


def test_additional_convolution_takes_longer() -> None:
    rows = [
        SIMULATOR.evaluate(
            batch_of(EdgePoint, {"device": "pixel2", **dict.fromkeys(some, "nor_conv_3x3")})
        )
        for some in ((), ("op_0_3",), ("op_0_3", "op_1_3"), ("op_0_1", "op_0_3", "op_1_3"))
    ]
    times = [row.column("latency_s")[0].as_py() for row in rows]
    assert times == sorted(times)
    assert np.all(np.diff(times) > 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": [1.0, 2.0]}, "`mean` needs .* numbers per row for nb201"),
        ({"mean": ["x"]}, r"\$.mean"),
        ({"unit_s": "fast"}, r"\$.unit_s"),
        ({"unit_s": -1.0}, r"\$.unit_s"),
        ({"noise": -0.1}, r"\$.noise"),
        ({"covariance": np.diag([-1.0] * 9).tolist()}, "not positive semidefinite"),
        ({"covariance": [[1.0]]}, "`covariance` needs .* numbers per row"),
        ({"format": "x"}, r"\$.format"),
        ({"format": 99}, "reads up to"),
        ({"search_space": "nb2O1"}, "unknown search space 'nb2O1'"),
        ({"search_space": 3}, r"\$.search_space"),
    ],
)
def test_malformed_device_file_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    whole = json.loads(text_of(device("nb201", "raspi4"), "nb201", {}))
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(whole | change))
    with pytest.raises(UserError, match=said):
        device("nb201", str(file))
