"""Architectures of ZigZag: levels, meshes and energies worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.core.errors import UserError
from simulators.dataflow.mapping import accelerator_named
from simulators.dataflow.simulator import DataflowPoint, simulate

ARCHITECTURE = """\
name: small
memories:
  rf_weights:
    size: 64
    r_bw: 8
    w_bw: 8
    r_cost: 0.1
    w_cost: 0.2
    area: 0
    r_port: 1
    w_port: 1
    rw_port: 0
    latency: 1
    operands: [I2]
    ports: [{fh: w_port_1, tl: r_port_1}]
    served_dimensions: []
  rf_outputs:
    size: 32
    r_bw: 16
    w_bw: 16
    r_cost: 0.3
    w_cost: 0.3
    r_port: 2
    w_port: 2
    operands: [O]
    served_dimensions: [D2]
  sram:
    size: 65536
    r_bw: 512
    w_bw: 512
    r_cost: 40
    w_cost: 80
    r_port: 1
    w_port: 1
    min_r_granularity: 64
    operands: [I1, O, S]
    served_dimensions: [D1, D2]
  dram:
    size: 10000000000
    r_bw: 64
    w_bw: 64
    r_cost: 700
    w_cost: 750
    r_port: 0
    w_port: 0
    rw_port: 1
    operands: [I1, I2, O]
    served_dimensions: [D1, D2]
operational_array:
  unit_energy: 0.04
  unit_area: 1
  dimensions: [D1, D2]
  sizes: [8, 4]
"""


def written(folder: Path, text: str) -> str:
    file = folder / "core.yaml"
    file.write_text(text)
    return str(file)


def test_memories_become_levels_outermost_first(tmp_path: Path) -> None:
    found = accelerator_named(written(tmp_path, ARCHITECTURE))
    assert [level.name for level in found.levels] == ["dram", "sram", "rf_outputs", "rf_weights"]
    assert [level.kind for level in found.levels] == ["dram", "sram", "register", "register"]
    assert [tuple(level.mesh) for level in found.levels] == [(1, 1), (1, 1), (8, 1), (8, 4)]
    assert [level.capacity_words for level in found.levels] == [None, 8192, 4, 8]
    assert found.levels[1].may_keep == (("Inputs", "Outputs"),)
    assert tuple(found.mac.mesh) == (8, 4)
    assert found.mac.energy_pj == 0.04


def test_costs_are_those_of_a_physical_access(tmp_path: Path) -> None:
    dram, sram, outputs, _ = accelerator_named(written(tmp_path, ARCHITECTURE)).levels
    assert sram.width_bits == 64  # the granularity: an eighth of the bandwidth
    assert sram.energy_pj == {"read": 5.0, "write": 10.0, "update": 10.0}
    assert dram.energy_pj["read"] == 700.0
    assert dram.shared_words_per_cycle == 8.0
    assert sram.read_words_per_cycle == 64.0
    assert outputs.read_words_per_cycle == 4.0  # two ports of 16 bits


def test_layers_are_mapped_onto_a_zigzag_architecture(tmp_path: Path) -> None:
    layers = tmp_path / "layers.yaml"
    layers.write_text("layers: [{name: up, matmul: {n: 8, c: 16, m: 32}}]")
    file = written(tmp_path, ARCHITECTURE)
    found = simulate(DataflowPoint(file, network=str(layers), evaluations=200))
    assert found.macs == 8 * 16 * 32
    assert found.cycles >= found.macs / 32


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sizes: [8, 4]", "sizes: [8, 4, 2]", "2 dimensions and 3 sizes"),
        ("sizes: [8, 4]", "sizes: [8, wide]", "sizes is 'wide', not a number above zero"),
        ("size: 64\n", "size: -1\n", "rf_weights: size is -1"),
        ("size: 64\n", "size: .inf\n", "size is inf, not a number above zero"),
        ("size: 64\n", "size: 64\n    min_r_granularity: x\n", "is 'x', not a whole number"),
        ("sizes: [8, 4]", "sizes: [8, 0.5]", "sizes is 0.5, not a whole number"),
        ("operands: [I2]", "operands: 3", "operands is 3, not a list"),
        ("operands: [I2]", "operands: [I3]", "operand 'I3' is not one of I2, I1, O"),
        ("served_dimensions: [D2]", "served_dimensions: [D9]", "served dimension 'D9'"),
        ("    latency: 1\n", "    latencies: 1\n", "'latencies' is not modelled"),
        ("operands: [I1, I2, O]", "operands: [I1, O]", "the outermost level, dram, must keep"),
        ("memories:\n", "memories: []\nothers:\n", "a table of keys is needed"),
    ],
)
def test_wrong_architecture_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in ARCHITECTURE
    with pytest.raises(UserError, match=said):
        accelerator_named(written(tmp_path, ARCHITECTURE.replace(old, new)))
