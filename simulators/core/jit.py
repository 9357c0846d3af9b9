"""Loops over events are compiled; importing them never compiles.

`kernel(signature)` keeps the stated signature and compiles at the first call; even the compiler is
imported only then. Stating it means that
the compiled loop comes from the cache in the next process, that kernels of one signature can stand
in for each other as typed function pointers, and that compiled and pure Python agree bit for bit.
The Python original stays reachable as `py_func`.

Each is compiled once, by whichever process comes first; processes that start together share the
work. What only kernels call is optimised and translated with its callers (`compiler.py`).

The cache folder is named by a hash of all kernel sources, the numba version and the CPU, because
numba does not notice a changed callee in another file. It is used only where it belongs to the user
and nobody else may write; without such a folder kernels are compiled for this process alone. Of
such folders, one for each version of the sources, those that were used last are kept.
"""

from __future__ import annotations

import atexit
import contextlib
import dis
import fcntl
import functools
import hashlib
import importlib
import os
import random
import shutil
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulators.core.folder import PACKAGE, folder_of_user, is_ours

_VERSIONS = 8
"""Folders kept: a few installations side by side, of some ten megabytes each."""

A = ParamSpec("A")
R = TypeVar("R")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def cache_folder() -> Path:
    """Return the folder compiled kernels are kept in, made if need be."""
    digest = hashlib.sha256(metadata.version("numba").encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        text = source.read_bytes()
        if b"kernel(" in text or b"numba.core" in text:
            digest.update(source.relative_to(PACKAGE).as_posix().encode())
            digest.update(text)
    name = digest.hexdigest()[:16]
    roots = [
        folder_of_user("XDG_CACHE_HOME", "~/.cache") / "sweeper" / "kernels",
        Path(tempfile.gettempdir()) / f"sweeper-{os.getuid()}" / "kernels",
    ]
    for root in roots:
        try:
            root.parent.parent.mkdir(parents=True, exist_ok=True)
            for place in (root.parent, root, root / name):
                place.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        if os.access(root / name, os.W_OK) and _is_safe(root / name):
            _let_others_go(root / name)
            return root / name
    alone = tempfile.mkdtemp(prefix="sweeper-kernels-")  # for this process and its children
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)


def _let_others_go(folder: Path) -> None:
    """Say that a folder is in use, and remove those that were not for longest, beyond a number.

    Each is renamed first, so that nobody finds half of one; a process that still compiles for it
    makes it anew.
    """
    with contextlib.suppress(OSError):  # another process does the same
        os.utime(folder)
        others = [f for f in folder.parent.iterdir() if f != folder and f.is_dir()]
        others.sort(key=lambda other: other.stat().st_mtime)
        for other in others[: max(len(others) + 1 - _VERSIONS, 0)]:
            gone = other.with_name(f"{other.name.partition('.')[0]}.{os.getpid()}")
            shutil.rmtree(other.rename(gone), ignore_errors=True)


def _is_safe(folder: Path) -> bool:
    """Return whether nobody else could put a file into a folder, or replace it or its parents.

    What is compiled is loaded as a pickle, which can do anything; so all that is there already is
    looked at too, should the folder have been open once.
    """
    if not all(map(is_ours, (folder.parent.parent, folder.parent, folder))):
        return False
    return _owners(folder) <= {os.getuid()}


def _owners(folder: Path | str) -> set[int]:
    """Return to whom what is in a folder belongs."""
    owners = set()
    with os.scandir(folder) as found:
        for file in found:
            with contextlib.suppress(FileNotFoundError):  # another process has just renamed it
                owners.add(file.stat(follow_symlinks=False).st_uid)
                if file.is_dir(follow_symlinks=False):
                    owners |= _owners(file.path)
    return owners


@functools.cache
def _numba() -> Any:
    """Import the compiler, which learns where its cache is and that kernels call kernels."""
    # numba reads this once, at import. The driver's choice is inherited by its workers.
    if "NUMBA_CACHE_DIR" not in os.environ:
        os.environ["NUMBA_CACHE_DIR"] = str(cache_folder())
    import numba
    from numba.extending import typeof_impl

    with contextlib.suppress(AttributeError, ImportError):  # of a release that is built otherwise
        importlib.import_module("simulators.core.compiler")  # teaches numba
    typeof_impl.register(Kernel, lambda value, _context: numba.types.Dispatcher(value.inner))
    return numba


@dataclass(frozen=True, eq=False)
class Type:
    """A type in a signature, described without importing the compiler."""

    build: Callable[[], Any]

    @functools.cached_property
    def numba(self) -> Any:
        """The compiler's own object."""
        return self.build()

    def __call__(self, *arguments: Type) -> Signature:
        """Return the signature of a kernel with this result."""
        return Signature(self, arguments)


@dataclass(frozen=True, eq=False)
class Signature:
    """What a kernel takes and returns."""

    result: Type
    arguments: tuple[Type, ...]

    @functools.cached_property
    def numba(self) -> Any:
        """The compiler's own object."""
        return self.result.numba(*(argument.numba for argument in self.arguments))


i8 = Type(lambda: _numba().types.int64)
f8 = Type(lambda: _numba().types.float64)
boolean = Type(lambda: _numba().types.boolean)
void = Type(lambda: _numba().types.void)


def array(kind: Type, dimensions: int = 1) -> Type:
    """Return the type of a contiguous array of `kind`."""
    return Type(lambda: _numba().types.Array(kind.numba, dimensions, "C"))


def arrays(kind: Type, count: int) -> tuple[Type, ...]:
    """Return the types of `count` contiguous vectors of `kind`, for use in a signature."""
    return (array(kind),) * count


def matrix(kind: Type) -> Type:
    """Return the type of a contiguous matrix of `kind`."""
    return array(kind, 2)


def several(kind: Type, count: int) -> Type:
    """Return the type of as many values of one kind, returned together."""
    return Type(lambda: _numba().types.UniTuple(kind.numba, count))


def named_tuple(kinds: Sequence[Type], factory: type) -> Type:
    """Return the type of a `NamedTuple` class whose fields have these types."""
    return Type(lambda: _numba().types.NamedTuple([k.numba for k in kinds], factory))


def pointer(signature: Signature) -> Type:
    """Return the type of a kernel passed as an argument: any kernel with that signature."""
    return Type(lambda: _numba().types.FunctionType(signature.numba))


class Kernel(Generic[A, R]):
    """A function compiled for one signature at its first call."""

    def __init__(
        self, function: Callable[A, R], signature: Signature, *, borrows: bool = False
    ) -> None:
        self.py_func = function
        self.options = {"_nrt": False, "forceinline": True} if borrows else {}
        self.signature = signature
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @functools.cached_property
    def compiled(self) -> Any:
        """The compiled function, to be passed where a `pointer(signature)` is wanted."""
        return _with_known_addresses(self._dispatcher(self.py_func, self.options))

    @functools.cached_property
    def inner(self) -> Any:
        """The same as kernels call it: made faster, without ways in from Python."""
        function = types.FunctionType(
            self.py_func.__code__, self.py_func.__globals__, self.__name__
        )
        function.__qualname__ = self.py_func.__qualname__ + ".inner"  # its own file in the cache
        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return self._dispatcher(function, self.options | bare)

    def where(self, **constants: bool) -> Kernel[A, R]:
        """Return the same kernel with other constants in its module, and its callees in theirs.

        What one of them rules out is not compiled.
        """
        found: Kernel[A, R] = _where(self, tuple(constants.items()))
        return found

    def _dispatcher(self, function: Callable[A, R], options: dict[str, bool]) -> Any:
        on_disk = Path(function.__code__.co_filename).is_file()  # else numba cannot watch it
        dispatcher = _numba().njit(cache=on_disk, nogil=True, **options)(function)
        compiler, signature = dispatcher._compiler, self.signature.numba
        translate = compiler.compile

        def compile_once(*how: Any) -> Any:
            """Callees first: in the middle of a caller's type inference they take much longer.

            Each process has its own order, so that several find different ones to begin with.
            """
            callees = _callees(function)
            random.Random(os.getpid()).shuffle(callees)  # noqa: S311 - who begins with what
            for callee in callees:
                _ = callee.inner
            if not on_disk:
                return translate(*how)
            name = f"{function.__module__}.{function.__qualname__}.lock"
            with _alone(Path(dispatcher.stats.cache_path, name)):
                context, cache = dispatcher.targetctx, dispatcher._cache
                if made := cache.load_overload(signature, context):
                    context.insert_user_function(made.entry_point, made.fndesc, [made.library])
                else:
                    made = translate(*how)
                    with contextlib.suppress(OSError):  # a full disk, or its folder was let go
                        cache.save_overload(signature, made)
                cache.disable()  # else it is written again, when another may read it
                return made

        compiler.compile = compile_once
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    def __call__(self, *args: A.args, **kwargs: A.kwargs) -> R:
        """Call the compiled function."""
        result: R = self.compiled(*args, **kwargs)
        return result

    def __reduce__(self) -> str:
        return self.__name__


@functools.lru_cache(maxsize=512)
def _where(kernel: Kernel[..., Any], constants: tuple[tuple[str, bool], ...]) -> Any:
    """Return a kernel with some constants; itself if neither it nor its callees have any."""
    function = kernel.py_func
    names, known = function.__code__.co_names, function.__globals__
    changed: dict[str, Any] = {name: value for name, value in constants if name in names}
    made = types.FunctionType(
        function.__code__, known | changed, function.__name__, None, function.__closure__
    )
    for callee in _callees(made):
        if (other := _where(callee, constants)) is not callee:
            changed |= {name: other for name in names if known.get(name) is callee}
    if not changed:
        return kernel
    made.__globals__.update(changed)
    said = (f"{name}_{value}" for name, value in constants)
    made.__qualname__ = ".".join((function.__qualname__, *said))
    made.__doc__ = function.__doc__
    return Kernel(made, kernel.signature, borrows=bool(kernel.options))


def _callees(function: Callable[..., Any]) -> list[Kernel[..., Any]]:
    """Return the kernels that a function calls, but where a constant of its module rules it out."""
    known, found, until = function.__globals__, dict[str, Any](), 0
    code = list(dis.get_instructions(function))
    for place, instruction in enumerate(code):
        if instruction.opname != "LOAD_GLOBAL" or instruction.offset < until:
            continue
        value = found[instruction.argval] = known.get(instruction.argval)
        ahead = [n for n in code[place + 1 : place + 3] if "IF_FALSE" in n.opname]
        if value is False and ahead:
            until = ahead[0].argval
    return [n for n in found.values() if isinstance(n, Kernel) and n.py_func is not function]


_NEXT: list[Kernel[..., Any]] = []
"""What this process is to compile, which it does while another compiles what it waits for."""
_PATIENCE_S, _LOOK_S = 60.0, 0.01
"""How long another process is waited for, which may hang, and how often it is looked after."""


def compile_together(*kernels: Kernel[..., Any]) -> None:
    """Compile kernels, the dearest last; processes that do at the same time share the work."""
    _NEXT[:] = kernels
    try:
        while _NEXT:
            _ = _NEXT.pop().compiled
    finally:
        _NEXT.clear()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait while another process holds a file, and hold it; do other work meanwhile."""
    with contextlib.ExitStack() as held:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(path.open("w"))
        except OSError:  # nowhere to write: nothing is shared either
            file = None
        until = time.monotonic() + _PATIENCE_S
        while file is not None and time.monotonic() < until:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if _NEXT:
                    _ = _NEXT.pop().compiled
                else:
                    time.sleep(_LOOK_S)
            except OSError:  # a file system without locks
                break
        yield


def _with_known_addresses(dispatcher: Any) -> Any:
    """Return a compiled function that remembers where its code is.

    Passed as a pointer, it is asked for two addresses at each call, and would find them by
    signature and name again: for three pointers 0.1 ms, as much as a short run takes. A caller asks
    by the same object each time, so that is known by its identity and kept.
    """
    find, known = dispatcher.get_compile_result, dict[int, tuple[Any, Any]]()

    def compile_result(signature: Any) -> Any:
        if id(signature) not in known:
            known[id(signature)] = signature, find(signature)
        return known[id(signature)][1]

    dispatcher.get_compile_result = compile_result
    for result in dispatcher.overloads.values():
        library = result.library
        library.get_pointer_to_function = functools.cache(library.get_pointer_to_function)
    return dispatcher


def kernel(
    signature: Signature, *, borrows: bool = False
) -> Callable[[Callable[A, R]], Kernel[A, R]]:
    """Compile the decorated function for `signature` when it is first called.

    `borrows`: the function allocates nothing and keeps no array, so references need not be
    counted, and calls between such kernels are inlined. For loops over events.

    >>> @kernel(f8(f8))
    ... def double(x: float) -> float:
    ...     return 2.0 * x
    >>> double(2.0) == double.py_func(2.0) == 4.0
    True
    """
    return lambda function: Kernel(function, signature, borrows=borrows)
