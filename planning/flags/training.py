"""Flags of `ask training`."""

from __future__ import annotations

from dataclasses import dataclass

from sweeper.questions import flag


@dataclass(frozen=True)
class TrainingFlags:
    """Flags of `ask training`: model, GPUs, training tokens and time limit."""

    model: str = flag("a model of the catalog, or a config.json")
    gpu: str = flag("GPUs to choose from, as in h100_sxm,b200_sxm")
    gpus: int = flag("number of GPUs (default 1024)", least=1, default=1024)
    tokens: float = flag("training tokens of the run, as in 2T (default 1T)", default=1e12)
    batch_tokens: float = flag("tokens per step, as in 4M, within 5 %% (default 4M)", default=4e6)
    batch: int = flag("sequences per step, exactly, instead of --batch-tokens", least=0, default=0)
    sequence: int = flag("tokens per sequence (default 8192)", least=1, default=8192)
    dtype: str = flag("precisions to choose from (default bf16)", default="bf16")
    loss: float = flag("target loss of a scaling law, instead of --tokens", default=0.0)
    lora: int = flag("rank of LoRA adapters; 0: train all weights", least=0, default=0)
    oom: float = flag("accepted risk of running out of memory (default 0.05)", default=0.05)
    days: float = flag("time limit of the run in days (default 365)", default=365.0)


FLAGS = TrainingFlags
