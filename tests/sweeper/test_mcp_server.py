"""The commands as tools of the Model Context Protocol, called by the SDK's own client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client import Client

from sweeper.commands.mcp_server import check, server_in, tools

CALLS = {
    "sweep": {"space": "quickstart", "overrides": ["space.axes.qps=[1,2]"]},
    "plan": {"space": "quickstart"},
    "query": {"name": "quickstart", "kind": "sensitivity"},
    "pareto": {"name": "quickstart", "where": "ttft_p99_s <= 0.5", "per": ["max_batch"]},
    "explain": {"name": "quickstart", "key": "knee"},
    "compare": {"name": "quickstart", "keys": ["knee", "knee"]},
    "export": {"name": "quickstart", "key": "knee"},
    "list": {"kind": "gpus", "word": "h100"},
    "show": {"name": "h100_sxm"},
    "accuracy": {"gpu": "h100_sxm", "simulators": ["serving"]},
    "fit": {"gpu": "rtx_5090", "rows": 3},
    "support": {"model": "qwen3_32b", "gpu": "h100_sxm"},
    "ask": {"model": "llama3_1_8b", "gpu": "h100", "gpus": 1, "qps": 1, "requests": 200},
    "ask_training": {"model": "llama3_1_8b", "gpu": "h100", "gpus": 8, "tokens": "1B"},
}
HOSTILE = [
    ("pareto", {"name": "../quickstart"}, "only files in the folder"),
    ("pareto", {"name": "/etc/passwd"}, "only files in the folder"),
    ("show", {"name": "s3://bucket/key"}, "only files in the folder"),
    ("sweep", {"space": "~/space.yaml"}, "only files in the folder"),
    ("sweep", {"space": "quickstart", "overrides": ["outputs=elsewhere"]}, "may override"),
    ("sweep", {"space": "quickstart", "overrides": ["engine=ray"]}, "may override"),
    ("sweep", {"space": "quickstart", "overrides": ["sampler=/tmp/mine.py"]}, "only files"),
    ("sweep", {"space": "quickstart", "overrides": ["space.axes.seed=1..100000"]}, "designs"),
    ("plan", {"space": "quickstart", "overrides": ["space.axes.gpu=${oc.env:HOME}"]}, "itself"),
    ("pareto", {"name": "quickstart", "where": "qps < 1 / /etc/passwd"}, "only files"),
    ("list", {"kind": "--help"}, "does not start with '-'"),
    ("ask", {"model": "llama3_1_8b", "gpu": "h100", "workload": "/etc/passwd"}, "only files"),
    ("ask", {"gpu": "h100"}, "needs the argument 'model'"),
    ("ask", {"model": "llama3_1_8b", "gpu": "h100", "shell": "ls"}, "has no argument 'shell'"),
    ("remove", {}, "there is no tool 'remove'"),
]


def served(folder: Path, use: Callable[[Any], Awaitable[None]], most_points: int = 10_000) -> None:
    async def connect() -> None:
        async with Client(server_in(folder, most_points)) as client:
            await use(client)

    anyio.run(connect)


def test_hostile_arguments_are_refused(tmp_path: Path) -> None:
    async def use(client: Any) -> None:
        for name, arguments, reason in HOSTILE:
            answer = await client.call_tool(name, arguments)
            assert answer.is_error, (name, arguments)
            assert reason in answer.content[0].text, answer.content[0].text

    served(tmp_path, use)
    assert not any(tmp_path.iterdir())


def test_a_condition_may_divide(tmp_path: Path) -> None:
    check(["pareto", "--where=ttft_p99_s / ttft_p50_s < 3", "--", "quickstart"], tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").symlink_to("/etc/passwd")
    asked = {"model": "llama3_1_8b", "gpu": "h100", "workload": "trace.csv"}

    async def use(client: Any) -> None:
        answer = await client.call_tool("ask", asked)
        assert answer.is_error
        assert "only files in the folder" in answer.content[0].text

    served(tmp_path, use)


def test_every_tool_states_its_arguments(tmp_path: Path) -> None:
    async def use(client: Any) -> None:
        listed = (await client.list_tools()).tools
        assert {t.name for t in listed} == set(tools()) == set(CALLS)
        for tool in listed:
            assert tool.description
            assert tool.input_schema["additionalProperties"] is False
            assert set(CALLS[tool.name]) <= set(tool.input_schema["properties"])
        assert any(r.name == "quickstart" for r in (await client.list_resources()).resources)

    served(tmp_path, use)


@pytest.mark.slow
def test_every_tool_answers_and_a_sweep_reports_progress(tmp_path: Path) -> None:
    said = list[str | None]()

    async def report(_: float, __: float | None, message: str | None) -> None:
        said.append(message)

    async def use(client: Any) -> None:
        for name, arguments in CALLS.items():
            answer = await client.call_tool(name, arguments, progress_callback=report)
            assert not answer.is_error, (name, answer.content[0].text)
            assert answer.content[0].text.strip(), name
        for uri in ("sweeper://gpus/h100_sxm", "sweeper://results/quickstart"):
            assert (await client.read_resource(uri)).contents[0].text

    served(tmp_path, use)
    assert any("quickstart" in (message or "") for message in said)


@pytest.mark.slow
def test_a_cancelled_sweep_ends_and_keeps_its_results(tmp_path: Path) -> None:
    started = anyio.Event()

    async def report(_: float, __: float | None, message: str | None) -> None:
        if message and message.startswith("engine process"):
            started.set()

    async def use(client: Any) -> None:
        asked = {"space": "llama70b_h100"}
        async with anyio.create_task_group() as group:

            async def call() -> None:
                await client.call_tool("sweep", asked, progress_callback=report)

            group.start_soon(call)
            await started.wait()
            await anyio.sleep(5)
            group.cancel_scope.cancel()

    served(tmp_path, use)
    assert list((tmp_path / "outputs").rglob("*.parquet"))
    assert not [p for p in Path("/proc").glob("[0-9]*") if _works_in(p, tmp_path)]


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False
