"""A thing's name is the name of its file: the folder is the registry.

Names resolve first in `./catalog/<folder>/`, then in `$SWEEPER_HOME/<folder>/`, then in the
package, so that an installed package needs no fork. A value that ends like a file is a path.

Aliases may be repositories of Hugging Face: they are found with or without their owner, in any
case, and with any of `-`, `.`, `_` and space between their words.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import shlex
import site
import stat
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from simulators.core.errors import UnknownNameError, UserError

T = TypeVar("T")

READ_BY_PATH = (".json", ".onnx")
"""Files of other tools that may be given instead of a name."""

_LONGEST = 240
"""Letters of a name: what file systems take, less a suffix."""

PACKAGE = Path(__file__).resolve().parent.parent
PACKAGES = PACKAGE.parent
"""The folder that `simulators/` and `sweeper/` stand in, and what is loaded by name."""


@dataclass(frozen=True)
class Folder:
    """One kind of thing, kept as one file each."""

    kind: str  # what one of them is called, as in "unknown gpu"
    path: str  # where the package keeps them, relative to itself
    suffix: str = ".toml"  # of the files
    besides: Folder | None = None  # where names are looked for that are not found here
    package: str = "simulators"  # which one keeps them

    @property
    def shipped(self) -> Path:
        """The folder in which the package keeps them."""
        return PACKAGES / self.package / self.path

    @property
    def places(self) -> tuple[Path, ...]:
        """The folders searched, the user's own first."""
        return _places(self, os.environ.get("SWEEPER_HOME", ""))

    @property
    def plural(self) -> str:
        """What several of them are called.

        >>> GPUS.plural, TOPOLOGIES.plural
        ('gpus', 'topologies')
        """
        return f"{self.kind[:-1]}ies" if self.kind.endswith("y") else f"{self.kind}s"

    def names(self) -> tuple[str, ...]:
        """Return every name that resolves, sorted."""
        names = {file.stem for file in self._files()}
        return tuple(sorted(name for name in names if not name.startswith("_")))

    def like(self, word: str) -> tuple[str, ...]:
        """Return the names that a word is part of, or part of an alias of.

        >>> MODELS.like("Qwen/Qwen3-32B"), GPUS.like("mi3")
        (('qwen3_32b',), ('mi300x', 'mi325x', 'mi350x', 'mi355x'))
        """
        wanted = folded(word)
        by_alias = {f.stem for spelling, f in self._aliases().items() if wanted in spelling}
        return tuple(n for n in self.names() if n in by_alias or wanted in folded(n))

    def find(self, name: str) -> Path:
        """Return the file behind a name, an alias or a path.

        Raises:
            UnknownNameError: nothing answers to the name.
            UserError: a path was given and no file is there.
        """
        self.check_length(name)
        ends_as_file = name.endswith((self.suffix, *READ_BY_PATH))
        if (ends_as_file or os.sep in name) and Path(name).is_file():
            return Path(name)
        if ends_as_file:
            raise UserError(f"{self.kind} '{name}': there is no such file")
        for place in self.places:
            if (file := place / f"{name}{self.suffix}").is_file():
                return file
        if (alias := self._aliases().get(folded(name))) is not None:
            return alias
        if self.besides is not None and self.besides.has(name):
            return self.besides.find(name)
        is_listed = self.kind in FOLDERS
        listed = f"`list {shlex.quote(self.plural)}` shows all; to" if is_listed else "To"
        raise UnknownNameError(
            self.kind,
            name,
            (*self.names(), *(self.besides.names() if self.besides else ())),
            f"{listed} add one, write "
            f"catalog/{Path(self.path).name}/{Path(name).name}{self.suffix}",
        )

    def check_length(self, name: str) -> None:
        """Raise `UserError` for a text that can be no file's name."""
        if len(name) > _LONGEST or "\0" in name:
            raise UserError(f"{self.kind} '{name[:40]!s}...' is {len(name):,} letters, and no name")

    def load(self, name: str, read: Callable[[Path], T]) -> T:
        """Return what `read` makes of the file behind a name, once per version of the file."""
        return once(read, self.find(name))

    def has(self, name: str) -> bool:
        """Say whether a name or an alias resolves here."""
        if any((place / f"{name}{self.suffix}").is_file() for place in self.places):
            return True
        return folded(name) in self._aliases() or name in self.names()

    def _files(self) -> list[Path]:
        """Every file; files that override earlier ones come last."""
        return [f for place in reversed(self.places) for f in place.glob(f"*{self.suffix}")]

    def _aliases(self) -> dict[str, Path]:
        """Every file by its folded names, a repository's also without its owner."""
        files = self._files() if self.suffix == ".toml" else []
        return {
            spelling: file
            for file in files
            for alias in (file.stem, *read_toml(file).get("aliases", ()))
            for spelling in (folded(alias), folded(alias.rpartition("/")[2]))
        }


@functools.cache
def _places(folder: Folder, home: str) -> tuple[Path, ...]:
    """Return the folders that are searched for a thing, the user's own first."""
    last = Path(folder.path).name
    own = [Path("catalog") / last, *([Path(home) / last] if home else [])]
    return (*own, folder.shipped)


def folded(name: str) -> str:
    """Return what spellings of a name have in common.

    >>> folded("Llama-3.1-8B"), folded("gpt_oss 20B")
    ('llama_3_1_8b', 'gpt_oss_20b')
    """
    return name.casefold().translate(str.maketrans("-. ", "___"))


@dataclass(frozen=True)
class _Simulators(Folder):
    """A folder of `simulators/` is a simulator when it holds a `simulator.py`."""

    def names(self) -> tuple[str, ...]:
        shipped = (file.parent.name for file in self.shipped.glob("*/simulator.py"))
        return tuple(sorted({*super().names(), *shipped}))

    def find(self, name: str) -> Path:
        self.check_length(name)
        if os.sep in name and (inside := Path(name) / "simulator.py").is_file():
            return inside  # a folder of one's own
        file = self.shipped / name / "simulator.py"
        return file if file.is_file() and name not in super().names() else super().find(name)


SIMULATORS = _Simulators("simulator", "simulators", ".py", package=".")
FORMATS = Folder("format", "formats", ".py", package=".")
GPUS = Folder("gpu", "catalog/gpus")
GRAPHS = Folder("graph", "catalog/graphs")
MODELS = Folder("model", "catalog/models", besides=GRAPHS)
CLUSTERS = Folder("cluster", "catalog/clusters")
ACCELERATORS = Folder("accelerator", "catalog/accelerators")
PRICES = Folder("price", "catalog/prices")
MEMORIES = Folder("memory", "catalog/memories")
TOPOLOGIES = Folder("topology", "collectives/topologies")
WORKLOADS = Folder("workload", "serving/calibration/workloads")
RUNTIMES = Folder("runtime", "composition/calibration/runtimes")
SCHEDULERS = Folder("scheduler", "serving/schedulers", ".py")
ROUTERS = Folder("router", "serving/routers", ".py")
ENGINES = Folder("serving engine", "catalog/engines")

FOLDERS = {
    folder.kind: folder
    for folder in (
        GPUS,
        MODELS,
        GRAPHS,
        CLUSTERS,
        TOPOLOGIES,
        ACCELERATORS,
        PRICES,
        MEMORIES,
        WORKLOADS,
        RUNTIMES,
        SCHEDULERS,
        ROUTERS,
        ENGINES,
        SIMULATORS,
    )
}


def is_ours(place: Path) -> bool:
    """Return whether a file or folder is there, the user's own, and nobody else may write to it."""
    try:
        found = place.lstat()
    except OSError:
        return False
    mine = found.st_uid == os.getuid() and not found.st_mode & 0o022
    return mine and not stat.S_ISLNK(found.st_mode)


def folder_of_user(variable: str, usual: str) -> Path:
    """Return a folder in the user's home, as the XDG Base Directory Specification names it.

    Where there is no home, nothing can be in it: a relative path would lead to anybody's folder.
    """
    named = os.environ.get(variable, "")
    found = Path(named if Path(named).is_absolute() else os.path.expanduser(usual))  # noqa: PTH111
    return found if found.is_absolute() else Path(os.devnull)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file, read once per version of the file.

    Raises:
        UserError: the file cannot be read, or is not TOML; says where.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    return _read_toml(path, stat.st_mtime_ns, stat.st_size)


def once(read: Callable[[Path], T], path: Path) -> T:
    """Return what `read` makes of a file, once per version of it."""
    return cast(T, _once(read, path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=1024)
def _once(read: Callable[[Path], Any], path: Path, _mtime_ns: int) -> Any:
    return read(path)


@functools.lru_cache(maxsize=1024)
def _read_toml(path: Path, _mtime_ns: int, _size: int) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


TRUST = "SWEEPER_TRUST"
"""The environment's variable of folders whose code may run, apart as in `$PATH`."""


def trusted() -> tuple[Path, ...]:
    """Return the folders whose code may run."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    installed += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    named = [os.environ.get("SWEEPER_HOME", ""), *os.environ.get(TRUST, "").split(os.pathsep)]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [path for path in paths if Path(path).is_absolute()]  # others follow the folder
    file = trust_file()
    ours = is_ours(file.resolve())  # it may be a link, as those who keep such files elsewhere do
    written = file.read_text(encoding="utf-8").splitlines() if ours else []
    words = filter(None, (*installed, *named, *absolute, *written))
    return (PACKAGES, *dict.fromkeys(Path(word).resolve() for word in words))


def trust_file() -> Path:
    """Return the file of trusted folders, a folder per line; the file may be missing."""
    return folder_of_user("XDG_CONFIG_HOME", "~/.config") / "sweeper" / "trusted"


def is_trusted(place: Path) -> bool:
    """Return whether code of a file or folder may run; links are followed first."""
    home = place.resolve()
    return any(home.is_relative_to(folder) for folder in trusted())


def runnable(folder: Folder) -> tuple[str, ...]:
    """Return the names of a folder whose code may run."""
    return tuple(name for name in folder.names() if is_trusted(folder.find(name)))


def check_trust(file: Path) -> None:
    """Raise `UserError` for code in a folder that the user has not trusted."""
    if is_trusted(file):
        return
    here, home = Path.cwd().resolve(), file.resolve()
    folder = here if home.is_relative_to(here) else home.parent
    raise UserError(
        f"{file} is code from a folder that you have not trusted, so it was not run. Read it; if "
        f"it may do all that you may: python -m sweeper trust {shlex.quote(str(folder))}\n"
        f"or, for one command, {TRUST}={shlex.quote(str(folder))} before it"
    )


def is_dotted(name: str) -> bool:
    """Say whether a name is that of an installed module.

    >>> is_dotted("mine.schedulers.fair"), is_dotted("fair"), is_dotted("./fair.py")
    (True, False, False)
    """
    parts = name.split(".")
    return len(parts) > 1 and parts[-1] != "py" and all(map(str.isidentifier, parts))


def file_of_user(folder: Folder, name: str) -> Path | None:
    """Return the user's file behind a name or a path; None for a module shipped or installed.

    Shipped modules are part of a simulator, whose version identifies the results.
    """
    file = None if is_dotted(name) else folder.find(name)
    return None if file is None or file.is_relative_to(folder.shipped) else file


def load_from(folder: Folder, name: str, attribute: str) -> Any:
    """Return what the module behind a name defines as `attribute`.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file cannot be imported, or defines no such thing.
    """
    module = load_module(folder, name)
    if not hasattr(module, attribute):
        raise UserError(f"{module.__file__}: a {folder.kind} defines `{attribute}`")
    return getattr(module, attribute)


def reader(format_: str, what: str) -> Callable[..., Any]:
    """Return the function `what` by which a file of another tool's format is read."""
    found: Callable[..., Any] = load_from(FORMATS, format_, what)
    return found


def load_module(folder: Folder, name: str) -> ModuleType:
    """Return the module behind a name; another one once its file has changed.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file cannot be imported, or is not trusted.
    """
    if not is_dotted(name):
        return import_file(folder.find(name))
    if name not in sys.modules:
        _check_module(name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, but what it imports is not
        raise UnknownNameError(folder.kind, name, folder.names()) from error


def _check_module(name: str) -> None:
    """Raise `UserError` for a module of the folder one stands in, unless that is trusted."""
    first, here = name.partition(".")[0], Path.cwd().resolve()
    places: list[str | None] = [first, f"{first}.py"]
    with contextlib.suppress(ValueError):  # `__main__` has none
        if spec := importlib.util.find_spec(first):  # of a first word, nothing is imported
            places = [spec.origin, *(spec.submodule_search_locations or ())]
    for place in map(Path, filter(None, places)):
        if place.exists() and place.resolve().is_relative_to(here):
            check_trust(place)


def import_file(file: Path) -> ModuleType:
    """Return the module of a file; another one once the file has changed."""
    return _imported(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _imported(file: Path, _mtime_ns: int) -> ModuleType:
    """Import a file; those of a package under their own names.

    Others are known by their path, so that another process finds the module of what it loads
    compiled.
    """
    check_trust(file)
    home = file.resolve()
    if home.is_relative_to(PACKAGES):
        parts = home.relative_to(PACKAGES).with_suffix("").parts
        if (PACKAGES / parts[0] / "__init__.py").is_file():
            return importlib.import_module(".".join(parts))
    name = f"file_{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, home)
    if spec is None or spec.loader is None:
        raise UserError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module while they are made
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
