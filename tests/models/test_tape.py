"""The stand-in for CUDA graphs does as they do: what it plays again reads tensors anew, knows
numbers of the host as they were, and it refuses what makes the host wait."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from quire.models.graphs.capture import GraphRecorder
from tests.models.graphs.device import StandInDevice

WAITS: dict[str, Callable[[Tensor], object]] = {
    "a branch": lambda x: 1 if x.sum() > 0 else 2,
    "a number": lambda x: x[0].item(),
    "an index": lambda x: [1, 2, 3, 4][x[0].long()],
    "a list": lambda x: x.tolist(),
    "a copy to the host": lambda x: x.cpu(),
    "a comparison": lambda x: torch.equal(x, x),
    "places": lambda x: x.nonzero(),
    "places, by where": lambda x: torch.where(x > 0),
    "a mask": lambda x: x[x > 0],
    "what is different": lambda x: torch.unique(x),
}


@torch.inference_mode()
def test_tensors_are_read_anew_and_numbers_are_not() -> None:
    x, out, step = torch.arange(4.0), torch.zeros(2), [10.0]

    def compute() -> None:
        torch.add(x.view(2, 2).sum(1), step[0], out=out)
        out.mul_(2)

    launch = GraphRecorder(StandInDevice()).capture(compute)
    assert out.tolist() == [22.0, 30.0]
    x.fill_(1.0)
    step[0] = 1000.0
    for _ in range(2):
        launch()
        assert out.tolist() == [24.0, 24.0]


@torch.inference_mode()
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_waiting_is_refused(wait: Callable[[Tensor], object]) -> None:
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match="waits for the device"):
        GraphRecorder(StandInDevice()).capture(lambda: wait(x))
    assert x.sum().item() == 4.0


def test_kernels_of_triton_are_launched_again() -> None:
    triton = pytest.importorskip("triton", reason="triton is not installed")
    from quire.models.attention.triton.write_kernel import write

    new, kept = torch.ones(2, 1, 16), torch.zeros(4, 1, 16)
    slots = torch.tensor([3, -1])

    def compute() -> None:
        sizes = (new.stride(0), new.stride(1))
        write[(triton.cdiv(2, 2),)](
            *(new, None, kept, None, None, None, slots, 2, *sizes, *sizes),
            **{"HEADS": 1, "HEAD_SIZE": 16, "V_HEAD_SIZE": 0, "K_COLUMNS": 16, "V_COLUMNS": 16},
            **{"ROWS": 2, "FORMAT": 0, "PEAK": 0.0},
        )

    launch = GraphRecorder(StandInDevice()).capture(compute)
    assert kept[:, 0, 0].tolist() == [0, 0, 0, 1]
    slots.copy_(torch.tensor([-1, 0]))
    new.fill_(5.0)
    launch()
    assert kept[:, 0, 0].tolist() == [5, 0, 0, 1]
