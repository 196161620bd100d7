"""The kinds of errors that end an engine process, and how the server hears of them."""

import msgspec
import pytest
import torch

from quire.engine.channel import Channel
from quire.engine.config import EngineConfig, ModelConfig
from quire.engine.failure_kind import DeviceFailed, FailureKind, kind_of
from quire.engine.messages import EngineFailure, EngineOutput, FromEngine, LoadingProgress, Ready
from quire.engines.process.launch import launch


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), FailureKind.OUT_OF_MEMORY),
        (MemoryError(), FailureKind.OUT_OF_MEMORY),
        (DeviceFailed("the device computes nothing any more"), FailureKind.DEVICE),
        (RuntimeError("CUDA error: device-side assert triggered"), FailureKind.DEVICE),
        (RuntimeError("shapes differ"), FailureKind.OTHER),
        (KeyError("r1"), FailureKind.OTHER),
    ],
)
def test_errors_are_told_apart(error: Exception, kind: FailureKind) -> None:
    assert kind_of(error) is kind


def test_a_start_that_settings_do_not_allow_says_so() -> None:
    decoder = msgspec.msgpack.Decoder[FromEngine](
        LoadingProgress | Ready | EngineFailure | EngineOutput
    )
    launched = launch(EngineConfig(ModelConfig("/no/such/checkpoint")))
    with launched.socket:
        channel, failed = Channel(launched.socket), None
        while failed is None:
            messages = [decoder.decode(body) for body in channel.receive(wait=True)]
            failed = next((each for each in messages if isinstance(each, EngineFailure)), None)
    assert launched.process.wait() == 1
    assert failed.kind is FailureKind.START
    assert "/no/such/checkpoint" in failed.message
