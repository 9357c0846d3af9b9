"""Event loops compiled by numba, with their Python originals kept.

`@kernel(signature)` compiles a function for the stated signature at the first call; importing a
module compiles nothing, and even numba is imported only then. A stated signature has three uses:
the next process loads the compiled code from numba's cache, kernels of one signature can replace
each other as typed function pointers, and compiled and interpreted code agree bit for bit.
`py_func` is the Python original.

A file lock lets one process compile a kernel while others wait and then load it from the cache.

The cache folder is named by a hash of all kernel sources and the numba version, because numba does
not notice a changed callee in another file. The folder is used only if it belongs to the user and
nobody else may write to it, since numba's cache is a pickle; otherwise kernels are compiled for
this process alone. The folders of the eight versions used last are kept.
"""

from __future__ import annotations

import atexit
import contextlib
import dis
import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Annotated, Any, Generic, ParamSpec, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from simulators.core.folder import PACKAGE, folder_of_user, is_ours

_VERSIONS = 8
"""Cache folders kept: a few installations side by side, about ten megabytes each."""
_PATIENCE_S, _POLL_S = 60.0, 0.02
"""Longest wait for a process that compiles the same kernel, and how often the lock is tried."""

A = ParamSpec("A")
R = TypeVar("R")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def cache_folder() -> Path:
    """Return the folder of compiled kernels; create it if it does not exist."""
    digest = hashlib.sha256(metadata.version("numba").encode())
    for source in sorted(PACKAGE.rglob("*.py")):
        text = source.read_bytes()
        if b"kernel(" in text:
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
            _remove_oldest(root / name)
            return root / name
    alone = tempfile.mkdtemp(prefix="sweeper-kernels-")  # for this process and its children
    atexit.register(shutil.rmtree, alone, ignore_errors=True)
    return Path(alone)


def _remove_oldest(folder: Path) -> None:
    """Mark a cache folder as used and remove the least recently used ones beyond `_VERSIONS`.

    A folder is renamed before it is removed, so that no process loads from half of a folder.
    """
    with contextlib.suppress(OSError):  # another process does the same
        os.utime(folder)
        others = [f for f in folder.parent.iterdir() if f != folder and f.is_dir()]
        others.sort(key=lambda other: other.stat().st_mtime)
        for other in others[: max(len(others) + 1 - _VERSIONS, 0)]:
            gone = other.with_name(f"{other.name.partition('.')[0]}.{os.getpid()}")
            shutil.rmtree(other.rename(gone), ignore_errors=True)


def _is_safe(folder: Path) -> bool:
    """Return whether only this user can write to a folder and to its two parents.

    Every file already in the folder must belong to this user too, because loading a pickle can run
    any code and the folder may have been writable for others before.
    """
    if not all(map(is_ours, (folder.parent.parent, folder.parent, folder))):
        return False
    return _owners(folder) <= {os.getuid()}


def _owners(folder: Path | str) -> set[int]:
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
    """Import numba, set its cache folder and let compiled kernels call other kernels."""
    # numba reads this variable once, at import; worker processes inherit it.
    if "NUMBA_CACHE_DIR" not in os.environ:
        os.environ["NUMBA_CACHE_DIR"] = str(cache_folder())
    import numba
    from numba.extending import typeof_impl

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
    """Argument and result types of a kernel."""

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
    """Return the type of a tuple of `count` values of one kind."""
    return Type(lambda: _numba().types.UniTuple(kind.numba, count))


def named_tuple(kinds: Sequence[Type], factory: type) -> Type:
    """Return the type of a `NamedTuple` class whose fields have these types."""
    return Type(lambda: _numba().types.NamedTuple([k.numba for k in kinds], factory))


IntMatrix = Annotated[Ints, matrix(i8)]
FloatMatrix = Annotated[Floats, matrix(f8)]
IntCube = Annotated[Ints, array(i8, 3)]


def struct(factory: type) -> Type:
    """Return the type of a `NamedTuple` class, by the annotations of its fields.

    `Ints` and `Floats` are vectors, `IntMatrix` and `FloatMatrix` have two dimensions, `IntCube`
    has three. Other fields are `int`, `float`, or such a class themselves.
    """
    plain = {Ints: array(i8), Floats: array(f8), int: i8, float: f8}

    def kind_of(hint: Any) -> Type:
        if isinstance(hint, type) and issubclass(hint, tuple):
            return struct(hint)
        return plain.get(hint) or hint.__metadata__[0]

    hints = get_type_hints(factory, include_extras=True).values()
    return named_tuple([kind_of(hint) for hint in hints], factory)


def pointer(signature: Signature) -> Type:
    """Return the type of a kernel passed as an argument: any kernel with that signature."""
    return Type(lambda: _numba().types.FunctionType(signature.numba))


class Kernel(Generic[A, R]):
    """A function compiled for one signature at its first call."""

    def __init__(
        self, function: Callable[A, R], signature: Signature, options: dict[str, Any]
    ) -> None:
        self.py_func = function
        self.options = options
        self.signature = signature
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    @functools.cached_property
    def compiled(self) -> Any:
        """The compiled function, to be passed where a `pointer(signature)` is wanted."""
        return self._dispatcher(self.py_func, self.options)

    @functools.cached_property
    def inner(self) -> Any:
        """The same function for calls from other kernels, without entry points from Python."""
        function = types.FunctionType(
            self.py_func.__code__, self.py_func.__globals__, self.__name__
        )
        function.__qualname__ = self.py_func.__qualname__ + ".inner"  # its own file in the cache
        bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return self._dispatcher(function, self.options | bare)

    def where(self, **constants: bool) -> Kernel[A, R]:
        """Return this kernel, and its callees, with other values of module constants.

        Branches that a constant rules out are not compiled.
        """
        found: Kernel[A, R] = _where(self, tuple(constants.items()))
        return found

    def _dispatcher(self, function: Callable[A, R], options: dict[str, Any]) -> Any:
        """Compile callees first, which is faster than during the type inference of the caller.

        Cached machine code includes the callees, so that a cached caller loads no callee.
        """
        on_disk = Path(function.__code__.co_filename).is_file()  # numba caches files only
        dispatcher = _numba().njit(cache=on_disk, nogil=True, **options)(function)
        name = f"{function.__module__}.{function.__qualname__}.lock"
        lock = Path(dispatcher.stats.cache_path, name) if on_disk else None
        if lock is None or not lock.exists():
            for callee in _callees(function):
                _ = callee.inner
        with _locked(lock):
            dispatcher.compile(self.signature.numba)
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
    """Return a kernel specialised to constants; unchanged if no callee uses any."""
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
    return Kernel(made, kernel.signature, kernel.options)


def _callees(function: Callable[..., Any]) -> list[Kernel[..., Any]]:
    """Return the kernels called by a function, except in branches disabled by module constants."""
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


def has_compiled() -> bool:
    """Return whether the cache folder has compiled kernels, so that the next ones load quickly."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder())
    return next(folder.rglob("*.nbc"), None) is not None


def compile_all(*kernels: Kernel[..., Any]) -> None:
    """Compile kernels, or load them from the cache."""
    for each in kernels:
        _ = each.compiled


@contextlib.contextmanager
def _locked(path: Path | None) -> Iterator[None]:
    """Hold an exclusive lock on a file while compiling, so that processes do not compile twice.

    The lock is an optimization: without a path, a writable folder or a file system with locks, and
    after `_PATIENCE_S` seconds of waiting for another process, the caller compiles without it.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file, give_up = held.enter_context(path.open("w")), time.monotonic() + _PATIENCE_S
                while not _try_lock(file) and time.monotonic() < give_up:
                    time.sleep(_POLL_S)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def kernel(
    signature: Signature, *, no_refcount: bool = False, simd: bool = False
) -> Callable[[Callable[A, R]], Kernel[A, R]]:
    """Compile the decorated function for `signature` when it is first called.

    Args:
        signature: argument and result types.
        no_refcount: the function allocates nothing and keeps no array, so numba need not count
            references, and calls between such kernels are inlined. For event loops.
        simd: division by zero gives an infinity instead of an exception. Without that check,
            loops over columns compile to vector instructions.

    >>> @kernel(f8(f8))
    ... def double(x: float) -> float:
    ...     return 2.0 * x
    >>> double(2.0) == double.py_func(2.0) == 4.0
    True
    """
    options: dict[str, Any] = {"_nrt": False, "forceinline": True} if no_refcount else {}
    if simd:
        options["error_model"] = "numpy"
    return lambda function: Kernel(function, signature, options)
