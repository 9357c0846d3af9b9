"""Results of every shipped space, a few points of each, to be printed, drawn and reported."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.explorer import chromium
from sweeper.__main__ import main
from tests.conftest import ROOT

SHIPPED = sorted(file.stem for file in (ROOT / "spaces").glob("*.yaml"))
_REQUESTS = "space.axes.requests=30"
CHEAP = {
    "collectives_h100": ["sampler.points=80", "space.axes.size_bytes=[4096,1048576]"],
    "eyeriss_resnet50": ["sampler.points=24", "space.axes.evaluations=50"],
    "gpt3_h100": ["sampler.points=300"],
    "llama405b_h100": ["sampler.points=300"],
    "llama70b_gpus": ["sampler.points=40", "space.axes.qps=[1,4]", _REQUESTS],
    "llama70b_h100": ["sampler.points=24", "space.axes.qps=[2,8]", _REQUESTS],
    "llama70b_passes": ["sampler.points=60", "space.axes.batch=[1,64]", "space.axes.context=512"],
    "llm_gpus_grid": [
        "sampler.points=200",
        "space.axes.model=[llama3_1_8b,qwen3_32b]",
        "space.axes.prompt_tokens=512",
        "space.axes.output_tokens=[128,256]",
    ],
    "quickstart": ["sampler.points=30", "space.axes.qps=[2,4]", _REQUESTS],
    "llama70b_accelerator": [
        "sampler=grid",
        "space.axes.qps=[0.5,1]",
        "space.axes.pe_rows=[128,256]",
        "space.axes.pe_cols=128",
        "space.axes.buffer_scale=1",
        "space.axes.dataflow=any",
        "space.axes.array_clock_hz=1.4e9",
        "space.axes.tp=[4,8]",
        "space.axes.pp=1",
        "space.axes.max_batch=[32,128]",
        _REQUESTS,
    ],
    "llama70b_gpu_sizes": [
        "sampler=grid",
        "space.axes.qps=[1,4]",
        "space.axes.sm_scale=[1,2]",
        "space.axes.clock_scale=1",
        "space.axes.l2_scale=1",
        "space.axes.max_batch=[16,64]",
        _REQUESTS,
    ],
    "llama70b_capacity": [
        "sampler=grid",
        "space.axes.gpu=h100_sxm",
        "space.axes.tp=[2,4]",
        "space.axes.pp=1",
        "space.axes.replicas=[1,2]",
        "space.axes.max_batch=[32,64]",
        _REQUESTS,
    ],
}
"""How a space is asked cheaply: few scenarios, fewer requests and tries."""
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without a window."""
    pytest.importorskip("selenium")
    found = chromium()
    if found is None:
        pytest.skip("needs Debian's chromium and chromium-driver")
    yield found
    found.quit()
