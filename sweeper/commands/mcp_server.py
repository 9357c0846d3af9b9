"""The commands as tools of the Model Context Protocol (MCP), for coding assistants.

A tool's arguments are those of its command. Each call runs the command in a process of its own, in
the folder where the server was started: a cancelled call ends its process, and the results of a
sweep so far are kept. Arguments cannot name files outside that folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simulators.core.contract import load_simulator
from simulators.core.errors import UserError
from sweeper.commands import COMMANDS
from sweeper.commands.ask.question import question_builder
from sweeper.commands.flags import parse, parser_of, question_parser
from sweeper.commands.run import requested_sweep
from sweeper.extras import DISTRIBUTION, load_extra
from sweeper.questions import QUESTIONS
from sweeper.space.shipped_files import spaces

_GENERATED = (
    "query",
    "pareto",
    "explain",
    "compare",
    "export",
    "list",
    "show",
    "accuracy",
    "fit",
    "support",
)
_HIDDEN = ("help", "json", "outputs", "write", "file", "trace", "records", "engine_")
"""Arguments that tools lack: they write files, or choose how results are printed and computed."""
_OVERRIDES = ("space.", "sampler", "failures.")
"""Beginnings of the overrides that a tool may set."""
_PROGRESS = re.compile(r"([\d,]+) of ([\d,]+) designs done")
_BETWEEN_WORDS = re.compile(r"[\s,=;:'\"\[\](){}]+")
_CATALOG = ("spaces", "gpus", "models", "engines")
_WIDTH = "160"
"""Characters of a printed line."""
_INSTRUCTIONS = """\
Predicts speed, cost and energy of LLM serving, training, kernels and accelerators, and searches
designs. Start with `ask` (cheapest deployment for a load) or `ask_training`. `plan` shows the size
of a sweep, `sweep` runs it, and `pareto`, `query`, `explain` and `export` read its results.
`accuracy` and `support` state errors on measured rows. `list` names models, GPUs and spaces."""


@dataclass(frozen=True)
class Tool:
    """One command as a tool: its argument parser, and the words in front of the arguments."""

    name: str
    about: str
    parser: argparse.ArgumentParser | None  # None: a sweep
    words: tuple[str, ...]

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        if self.parser is None:
            return _SWEEP_SCHEMA
        shown = [a for a in self.parser._actions if a.dest not in _HIDDEN]
        return {
            "type": "object",
            "properties": {a.dest: _schema_of(a) for a in shown},
            "required": [a.dest for a in shown if _is_required(a)],
            "additionalProperties": False,
        }

    def command(self, given: Mapping[str, Any]) -> list[str]:
        """Return the command line of a call.

        Raises:
            UserError: an argument is unknown or missing.
        """
        known = self.schema["properties"]
        if wrong := [name for name in given if name not in known]:
            raise UserError(f"{self.name} has no argument '{wrong[0]}'; it has {', '.join(known)}")
        if missing := [name for name in self.schema["required"] if name not in given]:
            raise UserError(f"{self.name} needs the argument '{missing[0]}'")
        if self.parser is None:
            return [*self.words, *_overrides(given)]
        flags, places = list[str](), list[str]()
        for action in self.parser._actions:
            value = given.get(action.dest)
            if value is None or value is False:
                continue
            values = [_word(v) for v in (value if isinstance(value, list) else [value])]
            if not action.option_strings:
                places += values
            elif action.nargs == 0:
                flags += action.option_strings[:1]
            else:
                flags += [f"{action.option_strings[0]}={v}" for v in values]
        return [*self.words, *flags, *(["--", *places] if places else [])]


_SWEEP_SCHEMA = {
    "type": "object",
    "properties": {
        "space": {"type": "string", "description": "a space, as listed by `list spaces`"},
        "overrides": {
            "type": "array",
            "items": {"type": "string"},
            "description": "changes, as in space.axes.tp=[4,8] or sampler.points=500",
        },
    },
    "required": ["space"],
    "additionalProperties": False,
}


def tools() -> dict[str, Tool]:
    """Return all tools by name."""
    found = {}
    for simulator in QUESTIONS.names():
        name = "ask" if simulator == QUESTIONS.names()[0] else f"ask_{simulator}"
        parser = question_parser(question_builder(load_simulator(simulator)).flags)
        about = f"{COMMANDS['ask']['about']} ({simulator})"
        found[name] = Tool(name, about, parser, ("ask", simulator))
    found["plan"] = Tool("plan", COMMANDS["plan"]["about"], None, ("plan",))
    found["sweep"] = Tool("sweep", "run or resume a sweep; returns its Pareto front", None, ())
    for name in _GENERATED:
        parser = parser_of(name)
        found[name] = Tool(name, COMMANDS[name]["about"], parser, (name,))
    return found


def main(words: list[str]) -> int:
    """Serve the tools on standard input and output, or over HTTP on this machine."""
    chosen = parse("mcp", words)
    load_extra("mcp", "an MCP server", "mcp")
    import anyio

    folder = Path.cwd()
    if folder == folder.parent:
        raise UserError(f"start `mcp` in a project's folder, not in {folder}: tools read its files")
    server = server_in(folder, chosen.points)
    if chosen.http is None:
        from mcp.server.stdio import stdio_server

        async def serve() -> None:
            async with stdio_server() as (read, write):
                await server.run(read, write, server.create_initialization_options())

        anyio.run(serve)
        return 0
    import uvicorn

    address = f"http://127.0.0.1:{chosen.http}/mcp"
    print(f"MCP server at {address}", file=sys.stderr)
    app = server.streamable_http_app(host="127.0.0.1")
    uvicorn.run(app, host="127.0.0.1", port=chosen.http, log_level="warning")
    return 0


def server_in(folder: Path, most_points: int) -> Any:
    """Return the MCP server whose commands run in a folder.

    A sweep of more than `most_points` designs is refused.
    """
    import mcp_types as types
    from mcp.server.lowlevel import Server

    known = tools()

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        listed = [
            types.Tool(name=t.name, description=t.about, input_schema=t.schema)
            for t in known.values()
        ]
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            if asked.name not in known:
                raise UserError(f"there is no tool '{asked.name}'; tools: {', '.join(known)}")
            command = known[asked.name].command(asked.arguments or {})
            check(command, folder)
            if asked.name == "sweep":
                check_size(command, most_points)
            code, text = await _run(command, folder, context.session.report_progress)
        except UserError as error:
            code, text = 2, str(error)
        content = types.TextContent(type="text", text=text)
        # Codes 1 and 3 are answers: nothing is feasible, or some points failed.
        return types.CallToolResult(content=[content], is_error=code not in (0, 1, 3))

    async def list_resources(_: Any, __: Any) -> types.ListResourcesResult:
        listed = [
            types.Resource(uri=f"sweeper://spaces/{name}", name=name, mime_type="text/plain")
            for name in spaces()
        ]
        return types.ListResourcesResult(resources=listed)

    async def list_templates(_: Any, __: Any) -> types.ListResourceTemplatesResult:
        kinds = [*(f"the entry of the catalog: {k}" for k in _CATALOG), "the front of a sweep"]
        listed = [
            types.ResourceTemplate(uri_template=f"sweeper://{kind}/{{name}}", name=about)
            for kind, about in zip((*_CATALOG, "results"), kinds, strict=True)
        ]
        return types.ListResourceTemplatesResult(resource_templates=listed)

    async def read(_: Any, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        kind, _, name = str(asked.uri).removeprefix("sweeper://").partition("/")
        if kind not in (*_CATALOG, "results"):
            raise UserError(f"there is no resource '{asked.uri}'")
        command = ["pareto", "--", name] if kind == "results" else ["show", "--", name]
        check(command, folder)
        code, text = await _run(command, folder, None)
        if code:
            raise UserError(text)
        found = types.TextResourceContents(uri=asked.uri, mime_type="text/plain", text=text)
        return types.ReadResourceResult(contents=[found])

    return Server(
        "sweeper",
        version=version(DISTRIBUTION),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
    )


def check(command: list[str], folder: Path) -> None:
    """Raise `UserError` if a word of a command names a place outside a folder.

    Interpolations are refused too: they read environment variables, and join parts to other paths.
    """
    home = folder.resolve()
    for word in command:
        if "${" in word or "\0" in word:
            raise UserError(f"{word!r}: write the value itself, in place of ${{...}}")
        # A slash between spaces divides.
        for part in (word, *_BETWEEN_WORDS.split(word.replace(" / ", " "))):
            is_address = part.startswith(("//", "~")) or "://" in word
            if is_address or not (home / part).resolve().is_relative_to(home):
                raise UserError(f"'{word}': only files in the folder of the server may be named")


def check_size(command: list[str], most: int) -> None:
    """Raise `UserError` if a sweep has more designs than a server allows."""
    sweep = requested_sweep(command).sweep
    if (size := sweep.sampler.size(sweep.space)) > most:
        raise UserError(
            f"the sweep has {size:,} designs, and this server allows {most:,}: choose fewer values "
            "or sampler=random with sampler.points"
        )


async def _run(command: list[str], folder: Path, report: Any) -> tuple[int, str]:
    """Return the exit code and the output of a command; `report` receives its progress."""
    import anyio
    from anyio.streams.text import TextReceiveStream

    said, printed = list[str](), list[str]()

    async def listen(stream: Any) -> None:
        async for text in TextReceiveStream(stream, errors="replace"):
            said.append(text)
            if report is not None:
                done = _PROGRESS.findall(text)
                now, of = (int(n.replace(",", "")) for n in done[-1]) if done else (0, None)
                await report(now, of, text.strip().splitlines()[-1] if text.strip() else None)

    program = [sys.executable, "-P", "-m", "sweeper", *command]
    env = {**os.environ, "COLUMNS": _WIDTH}
    opened = await anyio.open_process(program, cwd=folder, env=env, stdin=subprocess.DEVNULL)
    async with opened as process:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(listen, process.stderr)
                assert process.stdout is not None
                async for text in TextReceiveStream(process.stdout, errors="replace"):
                    printed.append(text)
            code = await process.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.send_signal(signal.SIGINT)  # keeps the results so far
                    with anyio.move_on_after(10):
                        await process.wait()
            raise
    return code, "".join(printed) if code == 0 else "".join([*printed, *said[-20:]])


def _overrides(given: Mapping[str, Any]) -> list[str]:
    words = [_word(w) for w in given.get("overrides", [])]
    for word in words:
        if not word.lstrip("+~").startswith(_OVERRIDES):
            allowed = ", ".join(f"{beginning}..." for beginning in _OVERRIDES)
            raise UserError(f"'{word}': a tool may override {allowed}")
    return [f"+space={_word(given['space'])}", *words]


def _word(value: Any) -> str:
    if isinstance(value, bool | dict | list) or value is None:
        raise UserError(f"{json.dumps(value)}: write text or a number")
    text = str(value)
    if text.startswith("-"):
        raise UserError(f"'{text}': an argument does not start with '-'")
    return text


def _is_required(action: argparse.Action) -> bool:
    return action.required if action.option_strings else action.nargs not in ("?", "*")


def _schema_of(action: argparse.Action) -> dict[str, Any]:
    about = {"description": action.help.replace("%%", "%")} if action.help else {}
    if action.option_strings and action.nargs == 0:
        return {"type": "boolean", **about}
    one: dict[str, Any] = {"type": ["string", "number"]}
    if action.choices:
        one = {"enum": list(action.choices)}
    is_list = isinstance(action, argparse._AppendAction) or action.nargs in ("*", "+")
    return {"type": "array", "items": one, **about} if is_list else {**one, **about}
