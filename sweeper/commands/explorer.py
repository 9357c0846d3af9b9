"""The command `ui`, a page to explore sweeps, served on this machine; and the page as one file.

The server listens on 127.0.0.1 alone. Its address contains a random token, and the `Host` of a
request must name this machine, so that no page of another origin can read results (DNS rebinding).
It serves the sweeps of one folder of results, and only reads.
"""

from __future__ import annotations

import re
import secrets
import threading
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from simulators.core.errors import UserError
from sweeper.commands.design import contributions, grouped, trace_events
from sweeper.commands.flags import parse
from sweeper.commands.query import warn_of_version
from sweeper.report.answers import Answers, latest
from sweeper.report.browser.explorer import MOST, ExploredSweep, page
from sweeper.report.browser.page import safe_json
from sweeper.report.evidence import spoken
from sweeper.report.run_folder import runs
from sweeper.store.keys import SHOWN

_BREAKDOWNS = 24
"""Designs of the front whose time breakdown a file holds, evenly spread."""
_HERE = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?")
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def ui(words: list[str]) -> int:
    """Serve the explorer page until the command is stopped."""
    chosen = parse("ui", words)
    names = known_sweeps(chosen.outputs)
    first = chosen.name or next(iter(names), None)
    if first is None:
        raise UserError(
            f"there are no results under {chosen.outputs}; run  python -m sweeper +space=quickstart"
        )
    warn_of_version(latest(first, chosen.outputs))  # also refuses unknown names
    served = ServedSweeps(chosen.outputs, first)
    with server(served, chosen.port or 0) as listening:
        address = f"http://127.0.0.1:{listening.server_address[1]}/{served.token}/"
        print(f"{address}  (stop with Ctrl-C)", flush=True)
        if not chosen.no_browser:
            webbrowser.open(address)
        listening.serve_forever()
    return 0


def known_sweeps(outputs: str) -> list[str]:
    """Return the names of the sweeps in a folder of results, the latest run first."""
    folders = (folder.parent.name for folder in Path(outputs).glob("*/runs"))
    last = {name: found[-1].stat().st_mtime for name in folders if (found := runs(outputs, name))}
    return sorted(last, key=lambda name: -last[name])


@dataclass(frozen=True)
class ServedSweeps:
    """The sweeps of a folder of results, opened on first use."""

    outputs: str
    first: str  # the sweep shown first
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: dict[str, ExploredSweep] = field(default_factory=dict)

    def answer(self, path: str) -> tuple[str, bytes]:
        """Return the media type and content of a path behind the token.

        Raises:
            UserError: there is no such sweep, column or design.
        """
        if path == "":
            names = list(dict.fromkeys([self.first, *known_sweeps(self.outputs)]))
            return "text/html", page(names, chosen=self.first).encode()
        match = re.fullmatch(r"sweeps/([^/]+)(?:/(columns|designs)/(\d{1,9}))?", path)
        if match is None:
            raise UserError("there is no such page")
        with self.lock:  # simulators and lazily read columns are not shared between threads
            sweep = self.sweep(unquote(match[1]))
            if match[2] == "columns":
                if int(match[3]) >= len(sweep.columns):
                    raise UserError("there is no such column")
                return "application/octet-stream", sweep.column(int(match[3]))
            found = design(sweep, int(match[3])) if match[2] else sweep.meta
        return "application/json", safe_json(found).encode()

    def sweep(self, name: str) -> ExploredSweep:
        """Return a sweep of the folder of results.

        Raises:
            UserError: there is no such sweep.
        """
        if name != self.first and name not in known_sweeps(self.outputs):
            raise UserError(f"there are no results of '{name[:60]}'")
        if name not in self.opened:
            self.opened[name] = ExploredSweep(latest(name, self.outputs))
        return self.opened[name]


def server(served: ServedSweeps, port: int) -> ThreadingHTTPServer:
    """Return a server on a port of 127.0.0.1; port 0 is any free one.

    Raises:
        UserError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            token, slash, path = self.path.removeprefix("/").partition("/")
            is_local = _HERE.fullmatch(self.headers.get("Host", ""))
            is_known = slash and secrets.compare_digest(token.encode(), served.token.encode())
            if not (is_local and is_known):
                return self._send(403, "text/plain", b"forbidden")
            try:
                kind, content = served.answer(path)
            except UserError as error:
                return self._send(404, "text/plain", str(error).encode())
            return self._send(200, kind, content)

        def _send(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            text = "" if kind.endswith("stream") else "; charset=utf-8"
            headers = {"Content-Type": kind + text, "Content-Length": str(len(content))}
            for name, value in {**headers, **_HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Print nothing: the address contains the token."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UserError(f"port {port} cannot be used: {error.strerror}") from error


def design(sweep: ExploredSweep, row: int) -> dict[str, Any]:
    """Return the columns of a design, and its time by phase and operator."""
    answers = sweep.answers
    key, values = sweep.design(row)
    columns = [(n, answers.human(n, v)) for n, v in values.items() if v is not None]
    found: dict[str, Any] = {
        "key": key,
        "choices": " ".join(answers.choices(values)),
        "columns": columns,
        "problem": "",
    }
    try:
        rows = contributions(answers.space.simulator, values)
    except UserError as error:
        return {**found, "problem": str(error)}
    phases = []
    for phase in dict.fromkeys(c.phase for c in rows):
        inside = [c for c in rows if c.phase == phase and c.time_s > 0.0]
        if inside:
            lines = [
                {"name": c.name, "time_s": c.time_s, "bound": c.bound, "level": spoken(c.level)}
                for c in grouped(inside)
            ]
            phases.append({"name": phase, "time_s": sum(c.time_s for c in inside), "rows": lines})
    trace = trace_events(rows, f"{answers.name} {key[:SHOWN]}")
    return {**found, "phases": phases, "trace": trace}


def explorer_file(last: Answers, other: Answers | None, rows: int | None) -> str:
    """Return the explorer page of a sweep with its columns, and those of a second sweep."""
    sweeps = {a.name: ExploredSweep(a).sampled(rows or MOST) for a in (last, other) if a}
    designs = {name: _breakdowns(sweep) for name, sweep in sweeps.items()}
    return page(chosen=last.name, embedded=sweeps, designs=designs)


def _breakdowns(sweep: ExploredSweep) -> Mapping[int, Any]:
    """Return designs of the front of the usual scenario, by row."""
    front = sweep.front_rows
    step = max(1, -(-len(front) // _BREAKDOWNS))
    return {row: design(sweep, row) for row in front[::step]}
