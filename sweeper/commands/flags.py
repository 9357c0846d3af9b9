"""The flags of commands: an argument parser that names the nearest flag to a mistyped one."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

from simulators.core.errors import UserError, suggestion
from sweeper.words import number_in

_LINES = 3
"""Lines of a usage that stand below a mistake; `--help` has all."""


EXAMPLES: dict[str, tuple[str, ...]] = {
    "ask": (
        "ask --model llama3_1_70b --gpu h100_sxm,mi300x --gpus 16 --qps 4",
        "ask --model Qwen/Qwen3-32B --gpu l40s,h100 --workload trace.csv --ttft 800ms",
        "ask training --model llama3_1_8b --gpu h100 --gpus 256 --tokens 100B --days 30",
    ),
    "list": ("list spaces", "list gpus mi3", "list models qwen"),
    "show": ("show h100_sxm", "show serving", "show quickstart knee"),
    "plan": ("plan +space=llama70b_h100", "plan +space=quickstart sampler=random sampler.points=9"),
    "pareto": (
        "pareto quickstart --where 'ttft_p99_s <= 0.5'",
        "pareto quickstart --min cost_usd_per_mtok --max tokens_per_s --per gpu",
    ),
    "query": (
        "query quickstart sensitivity ttft_p99_s",
        "query quickstart cheapest --slo 'ttft_p99_s <= 0.5 AND tpot_p99_s <= 0.02'",
        "query quickstart best-per cost_usd_per_mtok --level gpu",
        "query quickstart effects tpot_p99_s",
        "query quickstart idle",
        "query quickstart layers --layers 5",
        "query quickstart epsilon --epsilon 0.1",
        "query quickstart crowding",
        "query quickstart likely --band 0.2",
        "query quickstart hypervolume",
        "query quickstart near knee",
        "query quickstart fleet knee --load 3,9,20,5 --spare 1",
    ),
    "report": ("report quickstart --file quickstart.html",),
    "plot": (
        "plot quickstart front front.png",
        "plot quickstart curves curves.svg --of qps --y ttft_p99_s",
    ),
    "explain": ("explain quickstart knee --trace knee.json",),
    "compare": ("compare quickstart knee 67704eb9e8", "compare quickstart knee --log vllm.log"),
    "export": ("export quickstart knee --target kubernetes",),
    "verify": ("verify quickstart --rows 20",),
    "schema": ("schema --write space.schema.json",),
    "validate": (
        "validate serving --stored",
        "validate dataflow/maestro",
        "validate --predictions aiconfigurator",
    ),
    "watch": ("watch quickstart --page live.html", "watch quickstart --outputs /shared/sweeps"),
    "prune": ("prune quickstart",),
    "merge": ("merge /laptop/outputs s3://bucket/sweeps --outputs outputs",),
    "measure": (
        "measure --write mine.parquet --seconds 300",
        "measure --rows todo.parquet --write own.parquet --gpu l4",
    ),
    "calibrate": (
        "calibrate my_gpu --measured rows.parquet",
        "calibrate my_phone --measured latencies.csv --space nb201",
        "calibrate my_vllm --measured deployments.csv",
        "calibrate b200_sxm --measured h100.parquet --from h100_sxm --write b200.parquet",
        "calibrate l4 --measured a100.parquet --from a100_sxm --ask 10 --write todo.parquet",
    ),
    "trust": ("trust .", "trust"),
    "doctor": ("doctor",),
    "completion": (
        "completion bash > ~/.local/share/bash-completion/completions/sweeper",
        "completion zsh > ~/.zfunc/_sweeper",
        "completion fish > ~/.config/fish/completions/sweeper.fish",
    ),
}
"""What one may type, by command: the end of its help."""


class Flags(argparse.ArgumentParser):
    """An argument parser that fails like everything else here: in one paragraph."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, how the command is used, and an example."""
        known = [s for action in self._actions for s in action.option_strings]
        wrong = message.rpartition(": ")[2].split()[0] if "unrecognized" in message else ""
        usage = self.format_usage().strip().splitlines()
        usage = [*usage[:_LINES], "..."] if len(usage) > _LINES else usage
        example = " ".join((self.epilog or "").split("\n")[:2]).split()
        said = [f"{message}{suggestion(wrong, known)}", *usage, " ".join(example)]
        raise UserError("\n".join(filter(None, said)))


def flags(command: str, about: str) -> Flags:
    """Return a parser for `python -m sweeper COMMAND`."""
    return Flags(
        prog=f"python -m sweeper {command}",
        description=about,
        epilog=f"For example:\n{examples(command)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def results_flags(command: str, about: str) -> Flags:
    """Return a parser for a command about results of a space: which, and in which folder."""
    parser = flags(command, about)
    parser.add_argument("name", help="a space that has been run")
    parser.add_argument("--outputs", default="outputs", help="the folder or URL of its results")
    return parser


def examples(command: str) -> str:
    """Return what one may type, a line each."""
    return "\n".join(f"  python -m sweeper {line}" for line in EXAMPLES[command])


def at_least(least: int) -> Callable[[str], int]:
    """Return what reads a whole number, the `type` of an argument; fewer are refused."""

    def read(text: str) -> int:
        number = number_in(text)
        if number is None or number != int(number):
            raise ValueError(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{int(number)}: write at least {least}")
        return int(number)

    read.__name__ = int.__name__  # what argparse calls a number it cannot read
    return read
