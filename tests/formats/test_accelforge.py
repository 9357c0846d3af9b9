"""AccelForge's architectures in and out, and Timeloop's files out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from deploy.deployments.dataflow import DEPLOYMENTS
from simulators.catalog.accelerator import Accelerator, load_accelerator
from simulators.core.errors import UnknownNameError, UserError
from simulators.dataflow.evaluation import evaluated, machine_of
from simulators.dataflow.mapping import accelerator_named, layers_named, mapping_named, read_yaml
from simulators.dataflow.simulator import DataflowPoint, plan_of

ARCH = """arch:
  nodes:
  - !Memory
    name: MainMemory
    size: inf
    tensors: {keep: ~Intermediates, may_keep: All}
    actions:
    - {name: read, energy: 7.03e-12, throughput: 8 * 614e9}
    - {name: write, energy: 7.03e-12, throughput: 8 * 614e9}
  - !Memory
    name: GlobalBuffer
    size: 1024*1024*128*8
    tensors: {keep: ~MainMemory, may_keep: All}
    actions: [{name: read, energy: 15e-12, bits_per_action: 8}, {name: write, energy: 2e-12}]
  - !Container
    name: PE
    spatial: [{name: reuse_input, fanout: 128}, {name: reuse_output, fanout: 64}]
  - !Memory
    name: Register
    size: 8
    tensors: {keep: weight}
  - !Compute
    name: MAC
    actions: [{name: compute, energy: 0.084e-12, throughput: 1.05e9}]
"""


def read(folder: Path, text: str) -> Accelerator:
    file = folder / "arch.yaml"
    file.write_text(text)
    return accelerator_named(str(file))


def test_accelforge_architectures_are_read(tmp_path: Path) -> None:
    found = read(tmp_path, ARCH)
    dram, buffer, register = found.levels
    assert (dram.kind, buffer.kind, register.kind) == ("dram", "sram", "register")
    assert found.clock_hz == 1.05e9
    assert found.mac.mesh == register.mesh == (128, 64)
    assert buffer.capacity_words == 128 * 2**20
    assert dram.read_words_per_cycle == pytest.approx(614e9 / 1.05e9)
    assert dram.energy_pj["read"] == pytest.approx(8 * 7.03)
    assert buffer.energy_pj["read"] == pytest.approx(15.0)
    assert register.may_keep == (("Weights",),)
    assert buffer.may_keep[0] == ("Weights", "Inputs", "Outputs")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("size: 8\n", "size: eight\n", "neither a number"),
        ("keep: weight", "keep: kernel", "'kernel' is not one of weight"),
        ("name: Register\n", "name: Register\n    latency: 3\n", "'latency' is not modelled"),
        ("name: Register\n", "name: R\n    component_class: SRAM\n", "needs a component model"),
        ("fanout: 64", "size: 64", "needs its number"),
    ],
)
def test_unsupported_architectures_are_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        read(tmp_path, ARCH.replace(old, new))


def exported(folder: Path, target: str, **point: object) -> Path:
    file = folder / f"{target}.yaml"
    given = {"evaluations": 200, **point}
    file.write_text(DEPLOYMENTS.deployment(given, target, "design 1"))
    return file


@pytest.mark.parametrize("name", ["two_level", "tpu_like"])
def test_accelforge_files_are_read_back(tmp_path: Path, name: str) -> None:
    file = exported(tmp_path, "accelforge", accelerator=name, network="bert_base_128")
    before, after = load_accelerator(name), accelerator_named(str(file))
    assert [level.mesh for level in after.levels] == [level.mesh for level in before.levels]
    assert after.clock_hz == before.clock_hz
    if name == "tpu_like":  # words of 8 bits
        assert machine_of(after).energy_pj[1, 0] * 128 == pytest.approx(
            machine_of(before).energy_pj[1, 0]
        )


def test_workloads_of_products_are_written(tmp_path: Path) -> None:
    layers = "layers:\n- {name: up, matmul: {n: 8, c: 16, m: 32}}\n"
    (tmp_path / "net.yaml").write_text(layers + "- {name: down, matmul: {n: 8, c: 32, m: 16}}\n")
    point = {"accelerator": "two_level", "network": str(tmp_path / "net.yaml")}
    text = DEPLOYMENTS.deployment(point, "accelforge", "design 1")
    workload = text[text.index("workload:") :]
    up, down = yaml.safe_load(workload)["workload"]["einsums"]
    assert up["tensor_accesses"][2] == {"name": "T0", "projection": ["n0", "m0"], "output": True}
    assert down["tensor_accesses"][1] == {"name": "T0", "projection": ["n0", "m0"]}


def test_timeloop_files_are_read_back_with_equal_counts(tmp_path: Path) -> None:
    point = {"accelerator": "eyeriss_like", "network": "resnet50", "layer": "conv3_1_3x3"}
    point |= {"dataflow": "weight_stationary"}
    file = exported(tmp_path, "timeloop", **point)
    accelerator = accelerator_named(str(file))
    table = read_yaml(file)
    (tmp_path / "problem.yaml").write_text(yaml.safe_dump({"problem": table["problem"]}))
    (tmp_path / "map.yaml").write_text(yaml.safe_dump({"mapping": table["mapping"]}))
    [(layer, _)] = layers_named(str(tmp_path / "problem.yaml"), "all")
    mapping = mapping_named(str(tmp_path / "map.yaml"), layer, accelerator)
    plan = plan_of(DataflowPoint(evaluations=200, **point), load_accelerator("eyeriss_like"))
    ours = plan.parts[0].runs[0].found.evaluation
    counted = evaluated(mapping, layer, accelerator)
    assert not isinstance(counted, str)
    assert [t.totals for t in counted.traffic] == [t.totals for t in ours.traffic]
    assert counted.cycles == ours.cycles


def test_unknown_target_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'timeloop'"):
        DEPLOYMENTS.deployment({"accelerator": "two_level"}, "timelop", "design 1")
