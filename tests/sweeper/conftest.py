"""Results of every shipped space, a few points of each, to be printed, drawn and reported."""

from __future__ import annotations

import contextlib
import io
import os

import pytest

from sweeper.__main__ import main
from tests.conftest import ROOT

SHIPPED = sorted(file.stem for file in (ROOT / "spaces").glob("*.yaml"))
CHEAP = {
    "eyeriss_resnet50": ["sampler.points=24", "space.axes.evaluations=50"],
    "gpt3_h100": ["sampler.points=300"],
    "llama405b_h100": ["sampler.points=300"],
    "llama70b_gpus": ["sampler.points=24", "space.axes.requests=30"],
    "llama70b_h100": ["sampler.points=24", "space.axes.requests=30"],
    "quickstart": ["sampler.points=24", "space.axes.requests=30"],
    "llama70b_capacity": [
        "sampler=grid", "space.axes.tp=[2,4]", "space.axes.pp=1", "space.axes.replicas=[1,2]",
        "space.axes.max_batch=[32,64]", "space.axes.requests=30",
    ],
}  # fmt: skip
"""How a space is asked cheaply: other axes short, fewer requests and tries."""
USUAL = ["sampler.points=60"]


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of outputs in which some points of every shipped space have been answered."""
    outputs = tmp_path_factory.mktemp("shipped") / "outputs"
    for name in SHIPPED:
        words = [f"+space={name}", "sampler=random", *CHEAP.get(name, USUAL)]
        if "sampler=grid" in words:
            words.remove("sampler=random")
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([*words, "engine=inline", "plot=false", f"outputs={outputs}"])
        assert code == 0, f"{name}{os.linesep}{said.getvalue()}"
    return str(outputs)
