"""ONNX files as networks of the edge simulator's search spaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulators.core.columns import batch_of
from simulators.core.errors import UserError
from simulators.edge.simulator import SIMULATOR, EdgePoint

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")

from formats.onnx_search_space import network_of_onnx  # noqa: E402 - needs the extra

OFA_WIDTHS = (24, 40, 80, 112, 160)
OFA_STRIDES = (2, 2, 2, 1, 2)
FBNET_WIDTHS = (16, 24, 32, 64, 112, 184, 352)


class Drawing:
    """A chain of convolutions whose weights have shapes and no numbers."""

    def __init__(self, pixels: int) -> None:
        self.nodes: list[object] = []
        self.weights: list[object] = []
        self.last, self.channels, self.pixels = "x", 3, pixels

    def conv(self, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        name = f"c{len(self.nodes)}"
        shape = (channels, self.channels // groups, kernel, kernel)
        self.weights.append(onnx.TensorProto(name=f"{name}w", dims=shape, data_type=1))
        self.nodes.append(
            onnx.helper.make_node(
                "Conv",
                [self.last, f"{name}w"],
                [name],
                name=name,
                kernel_shape=[kernel, kernel],
                strides=[stride, stride],
                pads=[kernel // 2] * 4,
                group=groups,
            )
        )
        self.last, self.channels = name, channels

    def block(self, channels: int, kernel: int, expansion: int, stride: int = 1) -> None:
        inner = self.channels * expansion
        if expansion > 1:
            self.conv(inner, 1)
        self.conv(inner, kernel, stride, groups=inner)
        self.conv(channels, 1)

    def save(self, file: Path) -> Path:
        graph = onnx.helper.make_graph(
            self.nodes,
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [1, 3, self.pixels, self.pixels])],
            [onnx.helper.make_tensor_value_info(self.last, 1, None)],
            self.weights,
        )
        onnx.save(onnx.helper.make_model(graph), str(file))
        return file


def once_for_all(file: Path, network: dict[str, object]) -> Path:
    drawn = Drawing(int(network["r"]))  # type: ignore[call-overload]
    drawn.conv(16, 3, stride=2)
    drawn.block(16, 3, 1)
    sizes, wide, depths = (network[key] for key in ("ks", "e", "d"))
    for stage, (width, stride) in enumerate(zip(OFA_WIDTHS, OFA_STRIDES, strict=True)):
        for block in range(4 * stage, 4 * stage + depths[stage]):  # type: ignore[index]
            drawn.block(width, sizes[block], wide[block], stride if block % 4 == 0 else 1)  # type: ignore[index]
    drawn.conv(960, 1)
    return drawn.save(file)


NETWORK = {
    "ks": [7, 5, 5, 5, 7, 7, 5, 5, 5, 7, 3, 7, 5, 3, 3, 3, 5, 3, 5, 5],
    "e": [6, 4, 4, 4, 6, 3, 3, 3, 3, 6, 3, 3, 3, 6, 6, 6, 6, 4, 3, 3],
    "d": [2, 2, 4, 2, 3],
    "r": 208,
}


def latency(network: str) -> dict[str, object]:
    point = {"device": "2080ti_1", "search_space": "ofa", "network": network}
    row: dict[str, object] = SIMULATOR.evaluate(batch_of(EdgePoint, point)).to_pylist()[0]
    return row


def test_once_for_all_network_reads_back_up_to_blocks_beyond_the_depth(tmp_path: Path) -> None:
    text = network_of_onnx(once_for_all(tmp_path / "net.onnx", NETWORK), "ofa")
    read = json.loads(text)
    assert (read["d"], read["r"]) == (NETWORK["d"], NETWORK["r"])
    used = [i for i in range(20) if i % 4 < NETWORK["d"][i // 4]]  # type: ignore[index]
    for key in ("ks", "e"):
        assert [read[key][i] for i in used] == [NETWORK[key][i] for i in used]  # type: ignore[index]


def test_onnx_file_has_the_latency_of_the_network_it_holds(tmp_path: Path) -> None:
    file = once_for_all(tmp_path / "net.onnx", NETWORK)
    from_file, from_text = latency(str(file)), latency(json.dumps(NETWORK))
    assert from_file["status"] == "ok"
    assert from_file["latency_s"] == pytest.approx(from_text["latency_s"], rel=1e-12)


def test_fbnet_stage_with_fewer_blocks_than_layers_has_skips(tmp_path: Path) -> None:
    drawn = Drawing(224)
    drawn.conv(16, 3, stride=2)
    for width in FBNET_WIDTHS:
        drawn.block(width, 5, 6 if width > 16 else 1, stride=1)
        if width == 64:
            drawn.block(width, 3, 3)
    words = network_of_onnx(drawn.save(tmp_path / "fb.onnx"), "fbnet").split()
    assert words[:2] == ["k5_e1", "k5_e6"]
    assert words[9:13] == ["k5_e6", "k3_e3", "skip", "skip"]
    assert len(words) == 22


def test_network_of_another_space_is_refused_in_words(tmp_path: Path) -> None:
    file = once_for_all(tmp_path / "net.onnx", NETWORK)
    with pytest.raises(UserError, match="widths in a row"):
        network_of_onnx(file, "fbnet")
    with pytest.raises(UserError, match="not of nb201"):
        network_of_onnx(file, "nb201")
