"""A lock: one process of a machine at a time sweeps or compacts a definition of a space."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from simulators.core.errors import UserError
from sweeper.store.parquet import check_writable
from sweeper.store.store import Store


@contextlib.contextmanager
def alone(store: Store) -> Iterator[None]:
    """Hold the lock of a definition of a space.

    Processes of several machines, or with an object store, are not excluded: at worst they evaluate
    points twice, and equal rows count once.

    Raises:
        UserError: another process holds the lock, or the folder may not be written.
    """
    check_writable(store.folder)
    if "://" in store.folder:
        yield
        return
    file = _file(store)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # a link might lead to anything
        lock = os.fdopen(os.open(file, flags, 0o666), "w")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; delete it if it is no lock of yours") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"this sweep is already running into {store.folder}; wait for it, or stop it"
            ) from error
        yield


def is_held(store: Store) -> bool:
    """Return whether a process of this machine holds the lock; always true for a URL."""
    if "://" in store.folder:
        return True
    try:
        lock = os.fdopen(os.open(_file(store), os.O_RDONLY | os.O_NOFOLLOW))
    except OSError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _file(store: Store) -> Path:
    return Path(store.folder) / f".{store.definition.id}.lock"
