"""The engine of Ray actors, on this machine's cores or on a cluster's.

The address of a cluster is checked before Ray is imported: Ray would try an unreachable one for
minutes, and reads environment variables on import. A local Ray listens on the loopback only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from simulators.core.errors import UserError
from sweeper.engines import Pool
from sweeper.engines.pool import ONE_THREAD

_FAILURES = (ConnectionError, RuntimeError, ValueError, SystemExit)  # of `ray.init`
_ANSWER_S = 4.0  # time within which a cluster accepts a connection


@dataclass(frozen=True)
class Ray:
    """Actors, started once per sweep.

    Args:
        actors: number of actors; 0 takes one per core of the cluster.
        address: `local` starts Ray here; `auto` or `ray://host:port` joins a running cluster.
        ready_s: seconds after which an actor that is not ready is given up.
    """

    actors: int = 0
    address: str = "local"
    ready_s: float = 300.0

    @contextlib.contextmanager
    def open(self) -> Iterator[Pool]:
        """Start Ray, unless this process has one already, and shut the actors down at the end.

        Raises:
            UserError: no cluster answers, or it has fewer CPUs than `actors`.
        """
        if self.address != "local":
            check_address(self.address)
        else:  # else servers would listen on every interface of this machine
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
            os.environ.setdefault("RAY_health_check_period_ms", "1000")  # a killed raylet: 5 s
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "1")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it writes to our standard error
        import ray

        from sweeper.engines._ray_actors import ActorPool

        with _connected(self.address, self.actors):
            cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
            if self.actors > cores:  # the others would never be scheduled
                raise UserError(f"engine.actors={self.actors}: the cluster has only {cores} CPUs")
            is_client = "://" in self.address
            head = self.address if is_client else ray.get_runtime_context().gcs_address
            pool = ActorPool(
                self.actors or cores,
                self.ready_s,
                functools.partial(_answers, head),
                can_grow=not self.actors,
            )
            try:
                yield pool
            finally:
                pool.shut_down()


ENGINE = Ray


def check_address(address: str) -> None:
    """Raise `UserError` unless a server accepts connections at `host:port` within seconds."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            return  # Ray looks for a cluster on this machine itself, quickly
    match = re.fullmatch(r"(?:ray://)?\[?([^\s/\]]+?)\]?:(\d{1,5})", address)
    if not match:
        raise UserError(
            f"engine.address={address}: write local, auto, host:port or ray://host:port"
        )
    try:
        socket.create_connection((match[1], int(match[2])), timeout=_ANSWER_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(
            f"engine.address={address}: no answer ({error}); is the cluster running?"
        ) from error


def _answers(address: str) -> bool:
    try:
        check_address(address)
    except UserError:
        return False
    return True


@contextlib.contextmanager
def _connected(address: str, actors: int) -> Iterator[None]:
    """Connect to a cluster unless connected; stop Ray at the end if it was started here."""
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        with _quiet():
            _start(address, actors)
    try:
        yield
    finally:
        if is_ours and ray.is_initialized():
            for _, process in ray._private.worker._global_node.live_processes():
                process.send_signal(signal.SIGCONT)  # `shutdown` waits for a stopped raylet
            with _quiet():
                ray.shutdown()


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
    except (ray.exceptions.AuthenticationError, *_FAILURES) as error:
        hint = "" if address == "local" else "; are RAY_AUTH_MODE and the token those of the head?"
        raise UserError(f"engine.address={address}: Ray did not start: {error}{hint}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the SIGTERM handler of this process, and silence Ray's libraries on stderr."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    stderr, silence = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(silence)
        if is_main and before is not None:
            signal.signal(signal.SIGTERM, before)
