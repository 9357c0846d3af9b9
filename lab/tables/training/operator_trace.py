"""The operators of one training step of an image network, timed on one H100, in order."""

from __future__ import annotations

from pathlib import Path

from lab.stages.traced import BACKWARD, TimedOperator
from lab.tables.rows import read_records
from simulators.workload.precision import BYTES

TRACE = "training_modern/triosim_h100_op_trace.parquet"
GPU, NUMBER = "h100_sxm", BYTES["fp32"]
WEIGHT_GRADIENTS = {
    "ConvolutionBackward0": slice(1, 3),
    "CudnnBatchNormBackward0": slice(1, 3),
    "AddmmBackward0": slice(0, 2),
}
"""Outputs of backward operators that are gradients of weights."""


def read_trace(reference: Path, network: str) -> list[TimedOperator]:
    """Return the operators of a network's step."""
    return [
        TimedOperator(
            phase=row.stage,
            seconds=1e-6 * row.Operator_cudatime,
            output_bytes=NUMBER * sum(_sizes(row.OutputSize)[:1]),
            gradient_bytes=NUMBER * _weights(row.OperatorName, row.OutputSize),
            is_cut=bool(row.tpflag),
        )
        for row in read_records(reference / TRACE, network=network)
    ]


def gradient_bytes(trace: list[TimedOperator]) -> float:
    """Return the bytes of all gradients of weights."""
    return sum(one.gradient_bytes for one in trace if one.phase == BACKWARD)


def _weights(name: str, sizes: str) -> int:
    """Return how many numbers the weight gradients of an operator have."""
    outputs = WEIGHT_GRADIENTS.get(name.rpartition(" ")[2])
    return sum(_sizes(sizes)[outputs]) if outputs else 0


def _sizes(text: str) -> list[int]:
    """Return the sizes of tensors, which the trace writes as [1; 2; 3]."""
    return [int(size) for size in text.strip("[]").split(";") if size.strip()]
