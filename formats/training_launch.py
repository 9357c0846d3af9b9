"""Read launch files of trainers as spaces: scripts of Megatron-LM, configurations of torchtitan.

A script's options are read wherever they stand, with the variables that the script itself sets. The
model is the one of the catalog whose shapes the options state (Megatron-LM), or which the trainer
names (torchtitan). The number of replicas follows from nodes and GPUs per node. A launch file names
no GPU: whoever runs the space does.
"""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path
from typing import Any

from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import UserError, suggestion
from simulators.core.folder import MODELS, PACKAGES, read_toml
from simulators.training.job import MODULES, RECOMPUTES, recompute_of
from simulators.training.stages import even_sizes, read_layout

NAMES = read_toml(Path(__file__).with_suffix(".toml"))
MODELS_OF_TORCHTITAN = PACKAGES / "deploy" / "deployments" / "training.toml"
"""Where `export` finds torchtitan's name of a model."""
MEGATRON, TORCHTITAN = "megatron", "torchtitan"
MOST_DIGITS = 18
MAY_BE_ZERO = ("offload_layers", "mtp_layers", "first_stage_layers", "last_stage_layers")
"""Fields that may be 0."""
MODULE_LIST = "--recompute-modules"
"""The option with several values."""
PROGRAM = re.compile(r"\b(pretrain_\w+\.py|torchtitan[./]\w*)")
_SET = re.compile(
    r"""^\s*(?:export\s+)?([A-Za-z_]\w*)=("[^"\n]*"|'[^'\n]*'|\S+)\s*$""", re.MULTILINE
)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")

Options = dict[str, str]


def is_launch(path: Path) -> bool:
    """Return whether a file starts a training run: a script, or torchtitan's TOML."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return "training" in tomllib.loads(text)
    except (OSError, ValueError):
        return False
    return path.suffix in (".sh", ".bash") and bool(PROGRAM.search(text))


def space_of_launch(path: Path) -> str:
    """Return the space of one design, as YAML, that a launch file describes.

    Raises:
        UserError: an option is unknown or not modelled, a value is wrong, or the model is not in
            the catalog.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        fields = _torchtitan(dict(_flat(tomllib.loads(text))), path)
    else:
        options = _options(text)
        is_titan = "torchtitan" in text
        fields = _torchtitan(options, path) if is_titan else _megatron(options, path)
    axes = "".join(f"  {name}: {_yaml(value)}\n" for name, value in fields.items())
    return (
        f"# Training of {fields['model']} as launched by {path.name}; to run it, name the GPU:\n"
        f"# python -m sweeper +space=NAME space.axes.gpu=h100_sxm\n"
        f"simulator: training\naxes:\n{axes}"
    )


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if "|" in str(value) else str(value)


def _flat(table: Mapping[str, Any], path: str = "") -> list[tuple[str, str]]:
    found = []
    for name, value in table.items():
        inner = f"{path}.{name}".lstrip(".")
        found += _flat(value, inner) if isinstance(value, Mapping) else [(inner, str(value))]
    return found


def _options(text: str) -> Options:
    """Return the options of a script with their values; empty for flags."""
    text = re.sub(r"(^|\s)#[^\n]*", r"\1", text).replace("\\\n", " ")
    known = dict(_SET.findall(text))
    for _ in range(3):  # variables of variables
        text = _VARIABLE.sub(lambda m: str(known.get(m[1], m[2] or m[0])).strip("\"'"), text)
    try:
        words = [word.strip("()") for line in text.splitlines() for word in shlex.split(line)]
    except ValueError:
        words = text.replace("(", " ").replace(")", " ").split()
    found: Options = {}
    for i, word in enumerate(words):
        if word.startswith("activation-checkpoint:"):
            found["activation_checkpoint.mode"] = word.partition(":")[2]
        elif word.startswith("--"):
            name, _, value = word.partition("=")
            rest = words[i + 1 : i + 2] if name != MODULE_LIST else words[i + 1 :]
            found[name] = value or " ".join(takewhile(lambda one: one[:2] not in ("--", ""), rest))
    return found


def _check(options: Options, kind: str, path: Path) -> None:
    """Raise UserError for an option that may change time or memory and is not read."""
    table = NAMES[kind]
    read = [*table["fields"], *table["words"], *table.get("flags", ()), *table.get("shapes", ())]
    for name in options:
        if name not in read and not any(fnmatch(name, known) for known in table["known"]):
            raise UserError(f"{path}: the option '{name}' is not known{suggestion(name, read)}")


def _fields(options: Options, kind: str, path: Path) -> dict[str, Any]:
    table = NAMES[kind]
    found: dict[str, Any] = dict(table.get("absent", {}))
    for option, field in table["fields"].items():
        if option in options:
            least = 0 if field in MAY_BE_ZERO else 1
            found[field] = _whole(options[option], f"{path}: {option}", least)
    for option, words in table["words"].items():
        if (word := options.get(option)) is not None:
            if word not in words or word == "field":
                known = ", ".join(name for name in words if name != "field")
                raise UserError(f"{path}: {option} '{word}' is not modelled; modelled are {known}")
            found[words["field"]] = words[word]
    for option, meaning in table.get("flags", {}).items():
        found |= meaning if option in options else {}
    return found


def _megatron(options: Options, path: Path) -> dict[str, Any]:
    _check(options, MEGATRON, path)
    if (optimizer := options.get("--optimizer", "adam")) != "adam":
        raise UserError(f"{path}: --optimizer '{optimizer}' is not modelled; modelled are adam")
    found = _fields(options, MEGATRON, path)
    model = _model_of_shapes(options, path)
    if found["zero"] == 0 and "--use-distributed-optimizer" in options:
        found["zero"] = 1
    granularity = options.get("--recompute-granularity", "")
    if granularity == "full":
        found["recompute"] = "full"
        if options.get("--recompute-method") == "block":
            found["recompute_layers"] = _whole(options["--recompute-num-layers"], str(path))
    elif granularity == "selective":
        modules = options.get(MODULE_LIST, "core_attn").replace(",", " ").split()
        found["recompute"] = _recompute("+".join(modules))
    stages = found.get("pp", 1)
    if each := options.get("--num-layers-per-virtual-pipeline-stage"):
        where = f"{path}: --num-layers-per-virtual-pipeline-stage"
        found["chunks"] = model.layers // (stages * _whole(each, where, 1))
    elif chunks := options.get("--num-virtual-stages-per-pipeline-rank"):
        where = f"{path}: --num-virtual-stages-per-pipeline-rank"
        found["chunks"] = _whole(chunks, where, 1)
    elif layout := options.get("--pipeline-model-parallel-layout"):
        held = read_layout(layout)
        found["chunks"] = len(held) // stages
        is_even = [one.count("t") for one in held] == even_sizes(model.layers, len(held))
        if not is_even or held[-1].count("m") < found.get("mtp_layers", 0):
            found["pipeline_layout"] = layout
    if found.get("chunks", 1) > 1:
        found["schedule"] = "interleaved"
    return _with_replicas({"model": model.name, **found}, options, path)


def _recompute(words: str) -> str:
    """Return the word of recomputed modules, as a script lists them one after another."""
    bits = recompute_of(words)
    named = {value: word for word, value in RECOMPUTES.items() if word != "full"}
    joined = "+".join(name for n, name in enumerate(MODULES) if bits >> n & 1)
    return str(named.get(bits, joined))


def _with_replicas(fields: dict[str, Any], options: Options, path: Path) -> dict[str, Any]:
    """Return the fields with data-parallel replicas, tokens and groups of sharding."""
    nodes = options.get("--nnodes", options.get("--nodes", "1")).rpartition(":")[2]
    each = options.get("--nproc-per-node", options.get("--nproc_per_node", ""))
    if not each.isdecimal() or not nodes.isdecimal():
        raise UserError(
            f"{path} does not state its number of GPUs: write --nnodes and --nproc-per-node as "
            "numbers"
        )
    inside = math.prod(fields.get(n, 1) for n in ("tp", "pp", "cp"))
    gpus = int(nodes) * int(each)
    if gpus % inside:
        raise UserError(f"{path}: {gpus} GPUs are not a multiple of tp x pp x cp = {inside}")
    fields["dp"] = gpus // inside
    if iterations := options.get("--train-iters", options.get("training.steps")):
        steps = _whole(iterations, f"{path}: steps", 1)
        fields["tokens"] = steps * fields.get("batch", 1024) * fields.get("sequence", 4096)
    elif samples := options.get("--train-samples"):
        sequences = _whole(samples, f"{path}: --train-samples", 1)
        fields["tokens"] = sequences * fields.get("sequence", 4096)
    if groups := options.get("--num-distributed-optimizer-instances"):
        ranks = fields["dp"] * fields.get("cp", 1)
        where = f"{path}: --num-distributed-optimizer-instances"
        fields["shard_ranks"] = ranks // _whole(groups, where, 1)
    return fields


def _model_of_shapes(options: Options, path: Path) -> LanguageModel:
    stated = {
        field: _whole(options[option], f"{path}: {option}")
        for option, field in NAMES[MEGATRON]["shapes"].items()
        if option in options
    }
    if not {"layers", "hidden", "heads"} <= {*stated}:
        raise UserError(
            f"{path} does not state the model's shape: write --num-layers, --hidden-size and "
            "--num-attention-heads"
        )
    vocab = options.get("--vocab-size", "")
    for name in MODELS.names():
        model = load_model(name)
        is_equal = all(getattr(model, field) == value for field, value in stated.items())
        is_equal &= bool(model.experts) == ("experts" in stated)
        if is_equal and (not vocab.isdigit() or model.vocab == int(vocab)):
            return model
    shape = ", ".join(f"{field} {value:,}" for field, value in stated.items())
    raise UserError(f"{path}: no model of the catalog has {shape}; write catalog/models/NAME.toml")


def _torchtitan(options: Options, path: Path) -> dict[str, Any]:
    plain = {name.removeprefix("--"): value for name, value in options.items()}
    launch = {n: v for n, v in options.items() if n.startswith(("--nnodes", "--nproc", "--rdzv"))}
    plain = {n: v for n, v in plain.items() if f"--{n}" not in launch}
    _check(plain, TORCHTITAN, path)
    for pattern in NAMES[TORCHTITAN]["refused"]:
        for name in plain:
            if fnmatch(name, pattern):
                raise UserError(f"{path}: '{name}' is not modelled")
    found = _fields(plain, TORCHTITAN, path)
    name, dtype = _model_of_torchtitan(plain, path)

    def number(option: str, default: str) -> int:
        return _whole(plain.get(option, default), f"{path}: {option}", 1)

    degree = "parallelism.data_parallel_shard_degree"
    shard = -1 if plain.get(degree, "-1") == "-1" else number(degree, "")
    copies = number("parallelism.data_parallel_replicate_degree", "1")
    inside = math.prod(found.get(n, 1) for n in ("tp", "pp", "cp"))
    if shard < 0:
        gpus = _with_replicas({**found}, launch, path)["dp"] * inside
        shard = gpus // inside // copies
    found |= {"dp": shard * copies, "dtype": dtype, "gradient_dtype": "fp32"}
    reshard = plain.get("parallelism.fsdp_reshard_after_forward", "default")
    if found.get("pp", 1) > 1:  # whole weights and gradients until the last micro-batch
        found["zero"] = int(shard > 1)
    else:
        found["zero"] = 0 if shard == 1 else 2 if reshard == "never" else 3
    if shard > 1 and copies > 1:
        found["shard_ranks"] = shard
    local_of = "training.local_batch_size"
    local = number(local_of if local_of in plain else "training.batch_size", "8")
    whole = plain.get("training.global_batch_size", "-1")
    is_stated = whole != "-1"
    found["batch"] = number("training.global_batch_size", "") if is_stated else local * found["dp"]
    micro = number("parallelism.pipeline_parallel_microbatch_size", "1")
    found["micro_batch"] = micro if found.get("pp", 1) > 1 else local
    if "training.steps" in plain:
        steps = number("training.steps", "")
        found["tokens"] = steps * found["batch"] * found.get("sequence", 2048)
    has_compile = plain.get("compile.enable", "false").lower() in ("", "true")
    found["fusion"] = "fused" if has_compile and "compile.enable" in plain else "eager"
    return {"model": name, **found}


def _model_of_torchtitan(options: Options, path: Path) -> tuple[str, str]:
    """Return the model and the precision that torchtitan's names mean."""
    known = read_toml(MODELS_OF_TORCHTITAN)["torchtitan"]
    asked = options.get("config") or f"{options.get('model.name')}_{options.get('model.flavor')}"
    for model, names in known.items():
        for dtype, name in names.items():
            if dtype != "module" and name == asked.lower():
                return str(model), "fp8" if dtype == "mxfp8" else str(dtype)
    names = ", ".join(name for one in known.values() for k, name in one.items() if k != "module")
    raise UserError(f"{path}: the model '{asked}' of torchtitan is not known; known: {names}")


def _whole(text: str, where: str, least: int = 0) -> int:
    is_whole = text.isdecimal() and len(text) <= MOST_DIGITS
    if not is_whole or int(text) < least:
        raise UserError(
            f"{where} is '{text[:60]}', not a whole number" + f" from {least} on" * least
        )
    return int(text)
