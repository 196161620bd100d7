"""Data that passes between host and device is found, with the line of the model that did it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quire.models.graphs.crossings import HostTransferDetector, HostTransferError, reason

META = torch.device("meta")


class Asking(nn.Module):
    """Does one operation on the device's numbers."""

    def __init__(self, operation: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: Tensor) -> object:
        return self.operation(x)


def crossings_of(operation: Callable[[Tensor], object]) -> list[str]:
    x = torch.zeros(3, 4, device=META)
    crossings = HostTransferDetector(META.type)
    with crossings:
        Asking(operation)(x)
    return crossings.places


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.ones(4).to(x.device, non_blocking=True),
        lambda x: torch.tensor([1.0, 2.0], device=x.device),
        lambda x: torch.as_tensor(2.0, device=x.device),
        lambda x: x[[0, 1]],
        lambda x: x.copy_(torch.ones(3, 4)),
        lambda x: torch.where(x > 0, x, torch.zeros(())),
    ],
)
def test_numbers_of_the_host_are_found(operation: Callable[[Tensor], object]) -> None:
    (place,) = crossings_of(operation)
    assert place.startswith("<lambda> (test_crossings.py:") and "lambda x:" in place


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x * 2.0 + x.sum(),
        lambda x: torch.zeros(4, device=x.device) + x[1:, None],
        lambda x: torch.arange(4, device=x.device),
        lambda x: torch.full((2,), float("-inf"), device=x.device),
        lambda x: torch.tensor([1.0, 2.0]) + torch.ones(2),
        lambda x: torch.as_tensor(x),
        lambda x: (x.shape, x.dtype, x.device),
    ],
)
def test_numbers_that_stay_where_they_are_are_not(operation: Callable[[Tensor], object]) -> None:
    assert crossings_of(operation) == []


def test_a_reason_names_the_line_of_the_model() -> None:
    module = Asking(lambda x: x.sum().item())
    with pytest.raises(RuntimeError) as caught:
        module(torch.zeros(3, device=META))
    said = reason(caught.value)
    assert "<lambda> (test_crossings.py:" in said and "x.sum().item()" in said
    assert "\n" not in said


def test_a_reason_of_a_crossing_names_its_place() -> None:
    (place,) = crossings_of(lambda x: x * torch.tensor(2.0))
    assert reason(HostTransferError(place)) == f"numbers pass between host and device, in {place}"
