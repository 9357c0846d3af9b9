"""Parse exported commands by the trainers' own parsers: `python trainers.py < LINES`.

Runs in an environment with megatron-core (0.19), torchtitan (0.3) and PyTorch for CPUs. A line is
JSON: trainer, words, ranks, `CUDA_DEVICE_MAX_CONNECTIONS` and the GPU's compute capability. Prints
"ok" or the error of each line. Checks for GPUs and Transformer Engine are answered as a cluster
would.
"""

import contextlib
import io
import json
import os
import sys
import types
import typing
from unittest import mock

ENGINE = (2, 13)
"""Release of Transformer Engine."""


def megatron(words: list[str]) -> None:
    """Parse options as `pretrain_gpt.py` does, with all checks of the configuration."""
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer import transformer_config
    from megatron.training import arguments

    for module in (utils, arguments, transformer_config):
        module.is_te_min_version = lambda version, *_, **__: numbers(version) <= ENGINE
    rope_utils.fused_apply_rotary_pos_emb = rope_utils.fused_apply_rotary_pos_emb_thd = print
    with mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]):
        options = arguments.parse_args()
    arguments.validate_args(options)
    arguments.core_transformer_config_from_args(options)


def numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def torchtitan(words: list[str]) -> None:
    """Parse options as `torchtitan.train` does."""
    from torchtitan.config.manager import ConfigManager
    from torchtitan.tools import utils

    utils.has_cuda_capability = lambda *_: True
    ConfigManager().parse_args(words)


def main() -> None:
    """Answer each line of the input."""
    import torch
    import typing_extensions

    typing.override = typing_extensions.override  # new in Python 3.12
    for line in sys.stdin:
        trainer, words, ranks, queues, capability = json.loads(line)
        torch.cuda.get_device_capability = lambda *_, c=capability: (c, 0)
        torch.cuda.get_device_properties = lambda *_, c=capability: types.SimpleNamespace(major=c)
        os.environ |= {"WORLD_SIZE": str(ranks), "RANK": "0"}
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = queues
        said, answer = io.StringIO(), "ok"
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                (megatron if trainer == "megatron" else torchtitan)(words)
            except SystemExit:
                answer = said.getvalue()[-500:] or "exit"
            except (AssertionError, ImportError, TypeError, ValueError) as error:
                answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
