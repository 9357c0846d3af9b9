"""The command line: a first word without `=` is a command, everything else is Hydra's.

One Hydra job is one sweep. This is the only module that imports Hydra, and it does so only when a
space is given; queries answer without it, and without Ray.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulators.core.errors import UserError, suggestion

if TYPE_CHECKING:
    from omegaconf import DictConfig

COMMANDS = ("list", "show", "plan", "pareto", "validate", "doctor")

USAGE = """\
python -m sweeper +space=NAME [key=value ...]   run (or resume) a sweep; ends with its Pareto front
python -m sweeper list [KIND]                   what there is: spaces, gpus, models, schedulers ...
python -m sweeper show NAME [KEY]               what a space, gpu, model ... is; or one design of a space
python -m sweeper plan +space=NAME              points, removed by constraints, answered, time, bytes
python -m sweeper pareto NAME [--min A --max B --where SQL --per COLUMN --csv FILE --json]
python -m sweeper validate [ROOM ...]           accuracy against measured data
python -m sweeper doctor                        load every fact and calibration, run every simulator

Overrides, as in Hydra:
  'space.axes.tp=[4,8]'  'space.axes.qps=0.5..32 log 13'  'space.axes.batch=pow2 1..64'
  sampler=random sampler.points=500    sampler=sobol    engine=inline    engine=ray engine.actors=4
  outputs=/data/sweeps   output=json   failures.retry=true   plot=false

First steps:  python -m sweeper +space=quickstart
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code; mistakes are explained, not traced."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except UserError as error:
        sys.stdout.flush()
        print(f"sweeper: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nsweeper: stopped; what was written is kept, and the same command goes on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"sweeper {version('sweeper')}")
        return 0
    first = words[0]
    if "=" in first or first.startswith(("+", "-", "~")):
        from sweeper.commands import run

        return run.main(compose(words))
    if first not in COMMANDS:
        raise UserError(
            f"there is no command '{first}'{suggestion(first, COMMANDS)}\n"
            f"Commands: {', '.join(COMMANDS)}; a sweep is started by +space=NAME"
        )
    if first == "plan":
        from sweeper.commands import plan

        return plan.main(compose(words[1:]))
    import importlib

    command = importlib.import_module(f"sweeper.commands.{first}")
    code: int = command.main(words[1:])
    return code


def compose(words: list[str]) -> dict[str, Any]:
    """Return the configuration that these overrides make, with the space's name under `name`.

    Raises:
        UserError: an override cannot be read, or names a key that is not there.
    """
    from sweeper import places

    words = [f"+{w}" if w.startswith("space=") else w for w in words]
    chosen = [w for w in words if w.startswith("+space=")]
    if not chosen:
        raise UserError(
            f"which space? Write +space=NAME\nKnown: {', '.join(places.spaces()) or 'none'}"
        )
    if flags := [w for w in words if w.startswith("-")]:
        raise UserError(f"'{flags[0]}' is no option of a sweep; its options are keys, as in output=json")
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UserError(f"'{word}' is not an override; write key=value")
    file = places.find_space(chosen[-1].removeprefix("+space="))
    overrides = [w for w in words if not w.startswith("+space=")]
    with _hydra_errors(overrides):
        config = _compose(file, [*overrides, f"+space={file.stem}"])
    config["name"] = file.stem
    return config


def _compose(file: Path, overrides: list[str]) -> dict[str, Any]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from sweeper import engines, places, samplers

    store = ConfigStore.instance()
    for name in samplers.names():
        _offer("sampler", name, type(samplers.load_sampler(name)))
    for name in engines.ENGINES:
        _offer("engine", name, engines.options_of(name))
    store.store(group="space", name=file.stem, node=_read_space(file), package="space")
    with initialize_config_dir(version_base="1.3", config_dir=str(places.conf())):
        config: DictConfig = hydra_compose(config_name="config", overrides=overrides)
    choices = dict(w.split("=", 1) for w in overrides if w.startswith(("sampler=", "engine=")))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    plain["sampler"] = {"name": choices.get("sampler", "grid"), **plain["sampler"]}
    plain["engine"] = {"name": choices.get("engine", "auto"), **plain["engine"]}
    return plain


def _offer(group: str, name: str, kind: type) -> None:
    """Make `group=name` and `group.field=value` work on the command line, with checked types."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    node = OmegaConf.structured(kind)
    OmegaConf.set_readonly(node, False)  # frozen dataclasses arrive read-only
    ConfigStore.instance().store(group=group, name=name, node=node)


def _read_space(file: Path) -> Any:
    """Return a space file as a configuration in which every input of its simulator can be set."""
    from omegaconf import OmegaConf

    from sweeper.commands.spaces import read_space

    return OmegaConf.create(read_space(file, complete=True))


@contextlib.contextmanager
def _hydra_errors(overrides: list[str]) -> Iterator[None]:
    """Say in one paragraph what Hydra and OmegaConf say in several."""
    import re

    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        text = str(cause).strip()
        lines = [x.strip() for x in text.splitlines() if x.strip() and "object_type" not in x]
        message = " ".join(line for line in lines if not line.startswith("full_key"))
        if "not in struct" in text or "not in '" in text or "Could not override" in str(error):
            message = _unknown_key(str(error), text, overrides)
        elif match := re.search(r"Could not find '(\w+)/([^']*)'", str(error)):
            from simulators.core.errors import UnknownNameError
            from sweeper import engines, samplers

            known = samplers.names() if match[1] == "sampler" else engines.ENGINES
            raise UnknownNameError(match[1], match[2], known) from None
        elif "mismatched input" in text or "no viable alternative" in text or "LexerNoViableAlt" in text:
            message += "\nPut quotes around the whole override, as in 'space.axes.tp=[4,8]'"
        raise UserError(message) from None


def _unknown_key(hydra: str, omegaconf: str, overrides: list[str]) -> str:
    import re

    match = re.search(r"Key '([^']+)'", omegaconf) or re.search(r"Could not override '([^']+)'", hydra)
    key = match[1] if match else ""
    leaf = key.split(".")[-1]
    word = next((w for w in overrides if leaf and leaf in w.split("=")[0]), key)
    path = word.split("=")[0]
    known: tuple[str, ...] = ()
    if path.startswith("space.axes."):
        chosen = "the simulator of this space"
        return (
            f"'{word}': axis '{leaf}' is not an input of {chosen}"
            f"{suggestion(leaf, _axis_names)}\nIts inputs: {', '.join(_axis_names)}"
        )
    if path.split(".")[0] not in (*_TOP, "space"):
        known = _TOP
    elif path.startswith("space."):
        from sweeper.config import KEYS

        known = KEYS
    hint = suggestion(leaf, known) if known else ""
    listing = f"\nKnown: {', '.join(known)}" if known else ""
    return f"'{word}': there is no key '{path}'{hint}{listing}"


_TOP = ("space", "sampler", "engine", "outputs", "output", "plot", "failures")
_axis_names: list[str] = []


if __name__ == "__main__":
    sys.exit(main())
