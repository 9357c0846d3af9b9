"""Starts Ray on this machine's loopback, or joins a running cluster.

The address is checked first: Ray would try an unreachable one for minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

from simulators.core.errors import UserError
from sweeper.engines.limits import ONE_THREAD

_ANSWER_S = 4.0
"""Time within which a cluster takes a connection, and answers it."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How HTTP/2 begins, on which Ray's servers talk: the preface and empty SETTINGS (RFC 9113)."""
_SETTINGS = 4


def prepare(address: str) -> None:
    """Check the address and set the environment variables that Ray reads when it is imported.

    Raises:
        UserError: no cluster answers at the address.
    """
    if address != "local":
        check_address(address)
    else:  # else servers would listen on every interface of this machine
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it writes to our standard error


@contextlib.contextmanager
def joined(address: str, actors: int) -> Iterator[None]:
    """Connect to a cluster unless connected; stop Ray at the end if it was started here."""
    import ray

    ours = not ray.is_initialized()
    if ours:
        with _quiet():
            _start(address, actors)
    try:
        yield
    finally:
        if ours and ray.is_initialized():
            with _quiet():
                ray.shutdown()


def check_address(address: str) -> None:
    """Raise `UserError` unless something like a cluster answers at `host:port` within seconds."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    match = re.fullmatch(r"(?:ray://)?\[?([^\s/\]]+?)\]?:(\d{1,5})", address)
    if not match:
        if address:
            raise UserError(
                f"engine.address={address}: write local, auto, host:port or ray://host:port"
            )
        return  # Ray looks for a cluster on this machine itself, quickly
    why = ""
    try:
        with socket.create_connection((match[1], int(match[2])), timeout=_ANSWER_S) as line:
            if os.environ.get("RAY_USE_TLS", "0") not in ("1", "true"):
                line.settimeout(_ANSWER_S)
                line.sendall(_HELLO)
                if (line.recv(9) + bytes(9))[3] != _SETTINGS:
                    why = "the server is not Ray"
    except (OSError, OverflowError, UnicodeError) as error:
        why = f"no answer ({error})"
    if why:
        raise UserError(f"engine.address={address}: {why}; is the cluster running?")


def _start(address: str, actors: int) -> None:
    """Start Ray with a CPU for each of `actors`, or join the cluster at `address`."""
    import ray

    # Columns of a megabyte come and go with every chunk: let the allocator keep their pages.
    kept = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28))
    passed = {k: os.environ[k] for k in ("NUMBA_CACHE_DIR", "SWEEPER_HOME") if k in os.environ}
    options: dict[str, Any] = {
        "address": address,
        "runtime_env": {"env_vars": {**ONE_THREAD, **kept, **passed}},
        "log_to_driver": False,
        "logging_level": "CRITICAL",
    }
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": 100 * 1024 * 1024}
        options["num_cpus"] = actors or None
    # Lost workers are reported by the pool.
    ray._private.worker._worker_logs_enabled = False
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        raise UserError(f"engine.address={address}: Ray did not start: {error}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep this process's SIGTERM handler, and silence what Ray's libraries write to stderr."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    stderr, silence = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(silence)
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)
