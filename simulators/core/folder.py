"""Folders of named files: GPUs, models, clusters, schedulers, simulators and so on.

A name is the name of its file. Names resolve first in `./catalog/<folder>/`, then in
`$SWEEPER_HOME/<folder>/`, then in the package. A value that ends like a file is a path. Aliases may
be Hugging Face repositories, with or without the owner, in any case, and with any of `-`, `.`, `_`
and space between words.

Python files (schedulers, samplers, engines, simulators) are loaded by name, by path, or by the
dotted name of an installed module. A space or configuration from elsewhere may name any file, so
code runs only from trusted folders: the package, installed packages, `$SWEEPER_HOME`, absolute
folders of `$PYTHONPATH`, folders of `$SWEEPER_TRUST`, and folders recorded by
`python -m sweeper trust FOLDER`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import math
import os
import re
import shlex
import site
import stat
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from simulators.core.errors import UnknownNameError, UserError

T = TypeVar("T")

_LOOKED: ContextVar[dict[Any, Any] | None] = ContextVar("_LOOKED", default=None)


@contextlib.contextmanager
def single_scan() -> Iterator[None]:
    """Look at the folders once for all names within the context, as if no file changed in it."""
    if _LOOKED.get() is not None:
        yield
        return
    token = _LOOKED.set({})
    try:
        yield
    finally:
        _LOOKED.reset(token)


def cached_in_scan(key: object, find: Callable[[], T]) -> T:
    """Return the result of `find`, which is remembered by its key within `single_scan`."""
    known = _LOOKED.get()
    if known is None:
        return find()
    if key not in known:
        known[key] = find()
    return cast(T, known[key])


READ_BY_PATH = (".json", ".onnx")
"""Suffixes of other tools' files that may replace a name."""

_LONGEST = 240
"""Most characters of a name: the limit of file systems, less a suffix."""

PACKAGE = Path(__file__).resolve().parent.parent
PACKAGES = PACKAGE.parent
"""The folder with the packages `simulators`, `sweeper` and the packages loaded by name."""


@dataclass(frozen=True)
class Folder:
    """A kind of named files, one file per name."""

    kind: str  # for messages, as in "unknown gpu"
    path: str  # folder of the shipped files, relative to the package
    suffix: str = ".toml"  # of the files
    besides: Folder | None = None  # second folder for names that are not found here
    options: str = ""  # what separates a name from options behind it; empty: no options
    package: str = "simulators"  # package of the shipped files

    @property
    def shipped(self) -> Path:
        """The folder of the shipped files."""
        return PACKAGES / self.package / self.path

    @property
    def places(self) -> tuple[Path, ...]:
        """The searched folders, the user's own first."""
        return _places(self, os.environ.get("SWEEPER_HOME", ""))

    @property
    def plural(self) -> str:
        """The plural of the kind.

        >>> GPUS.plural, TOPOLOGIES.plural
        ('gpus', 'topologies')
        """
        return f"{self.kind[:-1]}ies" if self.kind.endswith("y") else f"{self.kind}s"

    def parted(self, name: str) -> tuple[str, str]:
        """Return a name without options, and its options with the separator.

        >>> PRICES.parted("owned:l40s=0.5"), GPUS.parted("l40s")
        (('owned', ':l40s=0.5'), ('l40s', ''))
        """
        known, mark, options = name.partition(self.options) if self.options else (name, "", "")
        return known, mark + options

    def names(self) -> tuple[str, ...]:
        """Return all known names, sorted."""
        return cached_in_scan((self, "names"), self._names)

    def _names(self) -> tuple[str, ...]:
        names = {file.stem for file in self._files()}
        return tuple(sorted(name for name in names if not name.startswith("_")))

    def like(self, word: str) -> tuple[str, ...]:
        """Return the names that contain a word, or have an alias that contains the word.

        >>> MODELS.like("Qwen/Qwen3-32B"), GPUS.like("mi3")
        (('qwen3_32b',), ('mi300x', 'mi325x', 'mi350x', 'mi355x'))
        """
        wanted = folded(word)
        by_alias = {f.stem for spelling, (_, f) in self._spellings().items() if wanted in spelling}
        return tuple(n for n in self.names() if n in by_alias or wanted in folded(n))

    def find(self, name: str) -> Path:
        """Return the file of a name, an alias or a path.

        Raises:
            UnknownNameError: the name is unknown.
            UserError: the path does not exist.
        """
        return cached_in_scan((self, "find", name), lambda: self._find(name))

    def _find(self, name: str) -> Path:
        self.check_length(name)
        name, _ = self.parted(name)
        ends_as_file = name.endswith((self.suffix, *READ_BY_PATH))
        if (ends_as_file or os.sep in name) and Path(name).is_file():
            return Path(name)
        if ends_as_file:
            raise UserError(f"{self.kind} '{name}': there is no such file")
        for place in self.places:
            if (file := place / f"{name}{self.suffix}").is_file():
                return file
        if (spelt := self._spellings().get(folded(name))) is not None:
            return spelt[1]
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
        """Raise `UserError` for a text that cannot be the name of a file."""
        if len(name) > _LONGEST or "\0" in name:
            raise UserError(f"{self.kind} '{name[:40]!s}...' is {len(name):,} letters, and no name")

    def load(self, name: str, read: Callable[[Path], T]) -> T:
        """Return `read(file)` for the file of a name, cached per version of the file."""
        return cached_in_scan((self, read, name), lambda: once(read, self.find(name)))

    def has(self, name: str) -> bool:
        """Return whether a name or an alias is known."""
        return cached_in_scan((self, "has", name), lambda: self._has(name))

    def _has(self, name: str) -> bool:
        if any((place / f"{name}{self.suffix}").is_file() for place in self.places):
            return True
        return folded(name) in self._spellings() or name in self.names()

    def name_of(self, name: str) -> str:
        """Return the name of an entry or of its variant by any spelling; other words as they are.

        >>> MODELS.name_of("Qwen/Qwen3-32B"), MODELS.name_of("zai-org/GLM-4.6")
        ('qwen3_32b', 'glm_4_6')
        """
        known = name in self.names()
        return name if known else self._spellings().get(folded(name), (name, Path()))[0]

    def _files(self) -> list[Path]:
        """Return all files; a file that overrides another one comes later."""
        return [f for place in reversed(self.places) for f in place.glob(f"*{self.suffix}")]

    def _spellings(self) -> dict[str, tuple[str, Path]]:
        """Return name and file by folded name and alias; repositories also without their owner.

        A variant in a file, such as a later release of the same shapes, has its own name.
        """
        files = self._files() if self.suffix == ".toml" else []
        return _spellings(tuple((file, file.stat().st_mtime_ns) for file in files))


@functools.lru_cache(maxsize=64)
def _spellings(files: tuple[tuple[Path, int], ...]) -> dict[str, tuple[str, Path]]:
    return {
        spelling: (name, file)
        for file, _ in files
        for sheet in (read_toml(file),)
        for name, facts in {file.stem: sheet, **sheet.get("variants", {})}.items()
        for alias in (name, *facts.get("aliases", ()))
        for spelling in (folded(alias), folded(alias.rpartition("/")[2]))
    }


@functools.cache
def _places(folder: Folder, home: str) -> tuple[Path, ...]:
    last = Path(folder.path).name
    own = [Path("catalog") / last, *([Path(home) / last] if home else [])]
    return (*own, folder.shipped)


_SEPARATORS = re.compile(r"(?<!\d)_|_(?!\d)")
_BRANDS = re.compile(
    r"^(nvidia_)?(geforce|tesla)_|^nvidia_(?=rtx_|[a-z]+\d)|^amd_(instinct_)?(?=mi\d)"
)


def folded(name: str) -> str:
    """Return a name in lower case without separators, except `_` between digits.

    The maker and the brand of a GPU, as nvidia-smi prints them, are left out.

    >>> folded("Llama-3.1-8B"), folded("gpt_oss 20B"), folded("NVIDIA GeForce RTX 4090")
    ('llama3_1_8b', 'gptoss20b', 'rtx4090')
    """
    spelt = _BRANDS.sub("", name.casefold().translate(str.maketrans("-. ", "___")))
    return _SEPARATORS.sub("", spelt)


@dataclass(frozen=True)
class _Simulators(Folder):
    """The folder of simulators: packages of `simulators/` with a `simulator.py`."""

    def _names(self) -> tuple[str, ...]:
        shipped = (file.parent.name for file in self.shipped.glob("*/simulator.py"))
        return tuple(sorted({*super()._names(), *shipped}))

    def _find(self, name: str) -> Path:
        self.check_length(name)
        if os.sep in name and (inside := Path(name) / "simulator.py").is_file():
            return inside  # a folder of the user
        file = self.shipped / name / "simulator.py"
        return file if file.is_file() and name not in super()._names() else super()._find(name)


SIMULATORS = _Simulators("simulator", "simulators", ".py", package=".")
FORMATS = Folder("format", "formats", ".py", package=".")
GPUS = Folder("gpu", "catalog/gpus")
GRAPHS = Folder("graph", "catalog/graphs")
MODELS = Folder("model", "catalog/models", besides=GRAPHS)
CLUSTERS = Folder("cluster", "catalog/clusters")
ACCELERATORS = Folder("accelerator", "catalog/accelerators")
PRICES = Folder("price", "catalog/prices", options=":")
MEMORIES = Folder("memory", "catalog/memories")
TOPOLOGIES = Folder("topology", "collectives/topologies")
WORKLOADS = Folder("workload", "serving/calibration/workloads")
RUNTIMES = Folder("runtime", "composition/calibration/runtimes")
SCHEDULERS = Folder("scheduler", "serving/schedulers", ".py")
ROUTERS = Folder("router", "serving/routers", ".py")
ENGINES = Folder("serving engine", "catalog/engines")

_FACTS = GPUS, MODELS, GRAPHS, CLUSTERS, TOPOLOGIES, ACCELERATORS, PRICES, MEMORIES, WORKLOADS
_RULES = RUNTIMES, SCHEDULERS, ROUTERS, ENGINES, SIMULATORS
FOLDERS = {folder.kind: folder for folder in (*_FACTS, *_RULES)}


def is_ours(place: Path) -> bool:
    """Return whether a file or folder exists, belongs to the user, and only the user may write."""
    try:
        found = place.lstat()
    except OSError:
        return False
    mine = found.st_uid == os.getuid() and not found.st_mode & 0o022
    return mine and not stat.S_ISLNK(found.st_mode)


def folder_of_user(variable: str, usual: str) -> Path:
    """Return a folder of the XDG Base Directory Specification.

    Without a home folder the result is the null device, since a relative path could be any folder.
    """
    named = os.environ.get(variable, "")
    found = Path(named if Path(named).is_absolute() else os.path.expanduser(usual))  # noqa: PTH111
    return found if found.is_absolute() else Path(os.devnull)


def read_toml(path: Path, *, finite: bool = True) -> dict[str, Any]:
    """Return the content of a TOML file, cached per version of the file.

    Raises:
        UserError: the file cannot be read, is not TOML, or has a number that is not finite
            although `finite`.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    return _read_toml(path, finite, stat.st_mtime_ns, stat.st_size)


def once(read: Callable[[Path], T], path: Path) -> T:
    """Return `read(path)`, cached per version of the file."""
    return cast(T, _once(read, path, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=1024)
def _once(read: Callable[[Path], Any], path: Path, _mtime_ns: int) -> Any:
    return read(path)


@functools.lru_cache(maxsize=1024)
def _read_toml(path: Path, finite: bool, _mtime_ns: int, _size: int) -> dict[str, Any]:
    infinite: list[str] = []

    def number(text: str) -> float:
        if not math.isfinite(value := float(text)) and finite:
            infinite.append(text)
        return value

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"), parse_float=number)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if infinite:
        key = next(_infinite_keys(content))
        raise UserError(f"{path}: {key} is {infinite[0]}; it must be a finite number")
    return content


def _infinite_keys(content: Any, key: str = "") -> Iterator[str]:
    if isinstance(content, float) and not math.isfinite(content):
        yield key
    named: Iterable[tuple[Any, Any]] = content.items() if isinstance(content, dict) else ()
    items = enumerate(content) if isinstance(content, list) else named
    for name, value in items:
        yield from _infinite_keys(value, f"{key}.{name}" if key else str(name))


TRUST = "SWEEPER_TRUST"
"""Environment variable of trusted folders, separated as in `$PATH`."""


def trusted() -> tuple[Path, ...]:
    """Return the folders whose code may run."""
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    installed += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    named = [os.environ.get("SWEEPER_HOME", ""), *os.environ.get(TRUST, "").split(os.pathsep)]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = [path for path in paths if Path(path).is_absolute()]
    file = trust_file()
    ours = is_ours(file.resolve())  # the file may be a link
    written = file.read_text(encoding="utf-8").splitlines() if ours else []
    words = filter(None, (*installed, *named, *absolute, *written))
    return (PACKAGES, *dict.fromkeys(Path(word).resolve() for word in words))


def trust_file() -> Path:
    """Return the path of the list of trusted folders, one per line. The file may not exist."""
    return folder_of_user("XDG_CONFIG_HOME", "~/.config") / "sweeper" / "trusted"


def is_trusted(place: Path) -> bool:
    """Return whether code of a file or folder may run, after following links."""
    home = place.resolve()
    return any(home.is_relative_to(folder) for folder in trusted())


def runnable(folder: Folder) -> tuple[str, ...]:
    """Return the names of a folder whose code may run."""
    return tuple(name for name in folder.names() if is_trusted(folder.find(name)))


def check_trust(file: Path) -> None:
    """Raise `UserError` if a file is in no trusted folder."""
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
    """Return whether a name has the form of an installed module's name.

    >>> is_dotted("mine.schedulers.fair"), is_dotted("fair"), is_dotted("./fair.py")
    (True, False, False)
    """
    parts = name.split(".")
    return len(parts) > 1 and parts[-1] != "py" and all(map(str.isidentifier, parts))


def file_of_user(folder: Folder, name: str) -> Path | None:
    """Return the user's file of a name or path, or None for shipped and installed modules.

    Shipped modules are part of a simulator, whose version identifies the results.
    """
    file = None if is_dotted(name) else folder.find(name)
    return None if file is None or file.is_relative_to(folder.shipped) else file


def load_from(folder: Folder, name: str, attribute: str) -> Any:
    """Return an attribute of the module of a name.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file cannot be imported, or lacks the attribute.
    """
    module = load_module(folder, name)
    if not hasattr(module, attribute):
        raise UserError(f"{module.__file__}: a {folder.kind} defines `{attribute}`")
    return getattr(module, attribute)


def reader(format_: str, what: str) -> Callable[..., Any]:
    """Return a function of a reader of another tool's files, `formats/<format_>.py`."""
    found: Callable[..., Any] = load_from(FORMATS, format_, what)
    return found


def load_module(folder: Folder, name: str) -> ModuleType:
    """Return the module of a name; a changed file is loaded again.

    Raises:
        UnknownNameError: the name is unknown.
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
            raise  # the module exists, but one of its imports does not
        raise UnknownNameError(folder.kind, name, folder.names()) from error


def _check_module(name: str) -> None:
    first, here = name.partition(".")[0], Path.cwd().resolve()
    places: list[str | None] = [first, f"{first}.py"]
    with contextlib.suppress(ValueError):  # `__main__` has no spec
        if spec := importlib.util.find_spec(first):  # imports nothing for a top-level name
            places = [spec.origin, *(spec.submodule_search_locations or ())]
    for place in map(Path, filter(None, places)):
        if place.exists() and place.resolve().is_relative_to(here):
            check_trust(place)


def import_file(file: Path) -> ModuleType:
    """Return the module of a file; a changed file is loaded again."""
    return _imported(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _imported(file: Path, _mtime_ns: int) -> ModuleType:
    """Import a file, under a dotted name in packages and under a hash of the path elsewhere.

    The name depends only on the path, so that other processes can unpickle objects of the module.
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
