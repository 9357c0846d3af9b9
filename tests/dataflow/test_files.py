"""Timeloop files of versions 3 and 4, and custom layer lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.core.errors import UserError
from simulators.dataflow.mapping import accelerator_named, layers_named, mapping_named
from simulators.dataflow.simulator import SIMULATOR, DataflowPoint, simulate
from simulators.workload.loop_nest import conv

PROBLEM = """problem:
  shape:
    name: conv
    dimensions: [C, M, R, S, N, P, Q]
    coefficients: [{name: Wstride, default: 1}, {name: Hstride, default: 1}]
    data-spaces:
    - {name: Weights, projection: [[[C]], [[M]], [[R]], [[S]]]}
    - {name: Inputs, projection: [[[N]], [[C]], [[R], [P, Wstride]], [[S], [Q, Hstride]]]}
    - {name: Outputs, projection: [[[N]], [[M]], [[Q]], [[P]]], read-write: true}
  instance: {C: 3, M: 4, R: 3, S: 3, N: 1, P: 8, Q: 8, Wstride: 2, Hstride: 2}
"""

V3 = """architecture:
  version: 0.3
  subtree:
  - name: system
    attributes: {technology: 45nm}
    local:
    - {name: DRAM, class: DRAM, attributes: {type: LPDDR4, width: 64, word-bits: 16}}
    subtree:
    - name: chip
      local:
      - name: buffer
        class: smartbuffer_SRAM
        attributes: {memory_depth: 1024, memory_width: 64, word-bits: 16, n_banks: 4}
      subtree:
      - name: PE[0..7]
        local:
        - {name: spad, class: regfile, attributes: {depth: 16, width: 16, word-bits: 16, meshX: 4}}
        - {name: mac, class: intmac, attributes: {datawidth: 16, meshX: 4}}
"""

V4 = """architecture:
  version: 0.4
  nodes:
  - !Container {name: system, attributes: {technology: "45nm", global_cycle_seconds: 1.0e-9}}
  - !Component {name: DRAM, class: DRAM, attributes: {type: LPDDR4, width: 64, datawidth: 16}}
  - !Component
    name: buffer
    class: smartbuffer_SRAM
    attributes: {depth: 1024, width: 64, datawidth: 16, n_banks: 4}
  - !Container {name: PE, spatial: {meshX: 4, meshY: 2}}
  - !Component {name: spad, class: regfile, attributes: {depth: 16, width: 16, datawidth: 16}}
  - !Component {name: mac, class: intmac, attributes: {datawidth: 16}}
"""

MAPPING = """mapping:
- {target: DRAM, type: temporal, factors: C3 M1 R1 S1 N1 P2 Q0, permutation: QPC}
- {target: buffer, type: temporal, factors: "R=3 S=3 M=1", permutation: RS}
- {target: buffer, type: spatial, factors: M4 P2, permutation: MP, split: 1}
- {target: spad, type: temporal, factors: P2, permutation: P}
- {target: spad, type: bypass, keep: [Outputs], bypass: [Weights, Inputs]}
"""


def written(folder: Path, text: str, name: str = "file.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_timeloop_problem_loads_as_a_layer(tmp_path: Path) -> None:
    [(layer, times)] = layers_named(written(tmp_path, PROBLEM), "all")
    ours = conv("conv", m=4, c=3, r=3, s=3, p=8, q=8, stride=2)
    assert times == 1
    assert layer.extents == ours.extents
    assert layer.tensors[1].words(layer.extents) == ours.words("Inputs")


@pytest.mark.parametrize("text", [V3, V4])
def test_timeloop_version_3_and_4_architectures_load_equal(tmp_path: Path, text: str) -> None:
    found = accelerator_named(written(tmp_path, text))
    assert [level.name for level in found.levels] == ["DRAM", "buffer", "spad"]
    assert [level.kind for level in found.levels] == ["dram", "sram", "register"]
    assert found.levels[1].capacity_words == 4096
    assert tuple(found.levels[2].mesh) == tuple(found.mac.mesh) == (4, 2)
    assert found.node_nm == 45.0


def test_timeloop_mapping_is_evaluated_unchanged(tmp_path: Path) -> None:
    files = {
        "accelerator": written(tmp_path, V3, "arch.yaml"),
        "network": written(tmp_path, PROBLEM, "problem.yaml"),
        "mapping": written(tmp_path, MAPPING, "mapping.yaml"),
    }
    found = simulate(DataflowPoint(**files))
    assert found.macs == 4 * 3 * 9 * 64
    assert found.cycles >= found.macs // 8
    assert all(SIMULATOR.reads(key, path)[0] == Path(path) for key, path in files.items())
    [(layer, _)] = layers_named(files["network"], "all")
    mapping = mapping_named(files["mapping"], layer, accelerator_named(files["accelerator"]))
    assert mapping.levels[0].temporal == (("C", 3), ("P", 2), ("Q", 8))
    assert mapping.levels[1].temporal == (("S", 3), ("R", 3))
    assert (mapping.levels[1].spatial_x, mapping.levels[1].spatial_y) == ((("M", 4),), (("P", 2),))
    assert mapping.levels[2].keep == ("Outputs",)


def test_custom_layers_are_named_or_einsums(tmp_path: Path) -> None:
    text = """layers:
- {name: up, times: 2, matmul: {n: 8, c: 16, m: 32}}
- {name: mine, einsum: "O[m,p] += I[c,2*p+r] * W[c,m,r]", sizes: {m: 4, p: 6, c: 2, r: 3}}
"""
    file = written(tmp_path, text)
    assert [(layer.macs, n) for layer, n in layers_named(file, "all")] == [(4096, 2), (144, 1)]
    found = simulate(DataflowPoint("two_level", network=file, evaluations=200))
    assert found.macs == 2 * 4096 + 144


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("network", "problem: [", "not valid YAML"),
        ("network", "problems: {}", "neither a 'problem'"),
        ("network", "problem: {shape: cnn-layer}", "must be written out"),
        ("network", PROBLEM.replace(", read-write: true", ""), "one data space must be read-write"),
        ("network", PROBLEM.replace("C: 3", "C: many"), "not a number"),
        ("network", PROBLEM.replace("M: 4", "M: 0"), "must be positive"),
        ("network", "layers: [{name: a, matmul: {n: 8}}]", "missing"),
        ("network", "layers: [{name: a, matmull: {n: 8}}]", "needs one of conv"),
        (
            "accelerator",
            "levels: []",
            "no 'architecture' of Timeloop, 'arch' of AccelForge or 'operational_array' of ZigZag",
        ),
        ("accelerator", V3.replace("memory_depth: 1024", "memory_depth: 2*512"), "not a number"),
        ("accelerator", V3.replace("meshX: 4", "meshX: 3"), "meshX is 3, of 8"),
        (
            "accelerator",
            V4.replace("class: intmac", "class: wire"),
            "storage levels and a mac",
        ),
        ("mapping", MAPPING.replace("C3", "K3"), "'K3' is not a factor"),
        ("mapping", MAPPING.replace("target: spad", "target: spads"), "did you mean 'spad'"),
        ("mapping", MAPPING.replace("type: spatial", "type: spacial"), "not temporal, spatial"),
        ("mapping", MAPPING.replace("Weights, Inputs", "Weight"), "did you mean 'Weights'"),
        ("mapping", MAPPING.replace("C3", "C0"), "multiply to"),
        ("mapping", "mapping: 3", "a list of levels"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, key: str, text: str, said: str) -> None:
    files = {"accelerator": V3, "network": PROBLEM, "mapping": MAPPING, key: text}
    if said == "multiply to":
        files["mapping"] = MAPPING.replace("C3", "C2")
    point = {name: written(tmp_path, each, f"{name}.yaml") for name, each in files.items()}
    with pytest.raises(UserError, match=said):
        simulate(DataflowPoint(**point))
