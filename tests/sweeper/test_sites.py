"""Site configurations expand to overrides, and cluster files match the package."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from simulators.core.errors import UserError
from sweeper.commands.overrides import compose, with_site
from sweeper.space.shipped_files import sites
from sweeper.space.space_file import read_site
from tests.conftest import ROOT

CLUSTER = ROOT / "docs" / "cluster"


@pytest.mark.parametrize("site", sites())
def test_shipped_site_is_a_valid_configuration(site: str) -> None:
    found = compose(["+space=quickstart", f"site={site}"])
    assert found["engine"]["name"] == "ray"
    assert found["engine"]["address"] == "auto"


def test_overrides_take_precedence_over_a_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "site").mkdir(parents=True)
    file = tmp_path / "conf" / "site" / "mine.yaml"
    file.write_text("engine: ray\nengine.actors: 3\noutputs: there\nfailures.max: null\n")
    monkeypatch.chdir(tmp_path)
    usual = ["engine=ray", "engine.actors=3", "outputs=there", "failures.max=null"]
    assert with_site(["site=mine"]) == usual
    assert with_site(["engine=inline", "site=mine"]) == [*usual[2:], "engine=inline"]
    for wrong in ("[1, 2]", "space.axes.n: 3", "engine: {name: ray}", "a: [", "1: 2"):
        file.write_text(wrong)
        with pytest.raises(UserError, match=r"mine\.yaml"):
            read_site(file)
    with pytest.raises(UserError, match="did you mean 'mine'"):
        with_site(["site=min"])


def sweeps(text: str) -> list[list[str]]:
    """Return the words of the sweeps that a file starts."""
    return [shlex.split(line) for line in re.findall(r"python -m sweeper (\+space.*)", text)]


def test_kubernetes_job_starts_a_sweep_with_one_image() -> None:
    job: dict[str, Any] = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    (words,) = sweeps(job["spec"]["entrypoint"])
    assert compose(words)["engine"]["address"] == "auto"
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    containers = [c for group in groups for c in group["template"]["spec"]["containers"]]
    assert len({c["image"] for c in containers}) == 1
    shared = compose(words)["outputs"].rpartition("/")[0]
    assert all(m["mountPath"] == shared for c in containers for m in c["volumeMounts"])
    lock = (ROOT / "requirements.lock").read_text()
    assert f"ray=={cluster['rayVersion']}" in lock


def closed(required: str = "", /, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without other keys."""
    kind = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**kind, "required": required.split()}


TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^[0-9.]+([mkKMGTPE]i?)?$"}]
}
QUANTITIES = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = closed(
    "name image",
    name=TEXT,
    image=TEXT,
    env={"type": "array", "items": closed("name", name=TEXT, value=TEXT)},
    resources=closed(limits=QUANTITIES, requests=QUANTITIES),
    volumeMounts={"type": "array", "items": closed("name mountPath", name=TEXT, mountPath=TEXT)},
)
VOLUME = closed(
    "name", name=TEXT, persistentVolumeClaim=closed("claimName", claimName=TEXT, readOnly=FLAG)
)
POD = closed(
    "spec",
    metadata={"type": "object"},
    spec=closed(
        "containers",
        containers={"type": "array", "minItems": 1, "items": CONTAINER},
        volumes={"type": "array", "items": VOLUME},
    ),
)
WORKERS = closed(
    "groupName maxReplicas minReplicas rayStartParams template",
    groupName=TEXT,
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    numOfHosts=COUNT,
    rayStartParams=TEXTS,
    template=POD,
)
RAY_CLUSTER = closed(
    "headGroupSpec",
    rayVersion=TEXT,
    enableInTreeAutoscaling=FLAG,
    headGroupSpec=closed("rayStartParams template", rayStartParams=TEXTS, template=POD),
    workerGroupSpecs={"type": "array", "items": WORKERS},
)
RAY_JOB = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=closed("name", name={**TEXT, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}),
    spec=closed(
        entrypoint=TEXT,
        backoffLimit=COUNT,
        shutdownAfterJobFinishes=FLAG,
        ttlSecondsAfterFinished=COUNT,
        runtimeEnvYAML=TEXT,
        submissionMode=TEXT,
        rayClusterSpec=RAY_CLUSTER,
    ),
)
"""The part of KubeRay's RayJob v1 that the manifest may use, written by hand from its Go types
(ray-operator/apis/ray/v1, rayjob_types.go and raycluster_types.go)."""


def test_kubernetes_job_fulfils_the_schema_of_a_ray_job() -> None:
    job: dict[str, Any] = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text())
    validator = jsonschema.Draft202012Validator(RAY_JOB)
    assert [error.message for error in validator.iter_errors(job)] == []
    workers = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    claims = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert {m["name"] for c in claims["containers"] for m in c["volumeMounts"]} == {
        volume["name"] for volume in claims["volumes"]
    }
    for key, wrong in (("maxReplicas", "8"), ("rayStartParams", {"num-cpus": 2}), ("cpus", 4)):
        rest = copy.deepcopy(job)
        rest["spec"]["rayClusterSpec"]["workerGroupSpecs"][0][key] = wrong
        assert not validator.is_valid(rest)


def test_ray_up_configuration_uses_one_image() -> None:
    asked: dict[str, Any] = yaml.safe_load((CLUSTER / "ray-up.yaml").read_text())
    assert asked["head_node_type"] in asked["available_node_types"]
    job: str = (CLUSTER / "rayjob.yaml").read_text()
    assert asked["docker"]["image"] in job


def test_slurm_script_is_valid() -> None:
    text = (CLUSTER / "slurm.sh").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert re.search(r'python -m sweeper "\$@" site=slurm', text)


@pytest.mark.slow
def test_container_image_holds_all_required_files(tmp_path: Path) -> None:
    text = (CLUSTER / "Containerfile").read_text()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert all(f"COPY {name} " in text for name in wheel["targets"]["wheel"]["packages"])
    for source, target in re.findall(r"^COPY (.+) (\S+)$", text, flags=re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists()
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tmp_path / target)
            else:
                shutil.copy(ROOT / name, tmp_path / target)
    config = {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    question = "ask --model llama3_1_8b --gpu h100_sxm --qps 1 --requests 30"
    for words in ("plan +space=quickstart", question, "show ./config.json"):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "sweeper", *words.split()],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
