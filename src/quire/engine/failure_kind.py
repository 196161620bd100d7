"""Classifies the errors that end an engine process. It does not import torch, because that import
may be the error."""

from enum import StrEnum

from quire.cache.sizing import TooLittleMemory
from quire.models.config import CheckpointError, UnsupportedModel

EXPECTED = (CheckpointError, TooLittleMemory, UnsupportedModel, ValueError)
"""Errors that settings can lead to at a start: their text is enough, no traceback is logged."""


class FailureKind(StrEnum):
    """The kinds of errors that end an engine process: out of memory, a dead device, settings or a
    checkpoint that allow no start, a killed rank, or others."""

    OUT_OF_MEMORY = "out_of_memory"
    DEVICE = "device"
    START = "start"
    RANK_KILLED = "rank_killed"
    OTHER = "other"


class DeviceFailed(RuntimeError):
    """The device computes nothing any more: the process has to end."""


class RanksFailed(RuntimeError):
    """A call that all ranks make has failed in one of them: they may be out of step, and the
    process has to end."""


def kind_of(error: BaseException) -> FailureKind:
    """Return the kind of an error that ends the process. torch's errors are known by name."""
    if isinstance(error, RanksFailed) and error.__cause__ is not None:
        return kind_of(error.__cause__)
    names = {each.__name__ for each in type(error).__mro__}
    if names & {"DeviceFailed", "AcceleratorError"} or "CUDA error" in str(error):
        return FailureKind.DEVICE
    if names & {"OutOfMemoryError", "MemoryError", "TooLittleMemory"}:
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.OTHER


def start_failure_of(error: BaseException) -> FailureKind:
    """Return the kind of an error of a start: where memory is short, the same start may succeed
    once others have given memory back."""
    kind = kind_of(error)
    return FailureKind.START if kind is FailureKind.OTHER else kind
