"""What rounding may change is little enough that what is no rounding shows."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from quire.models.attention.reference import ReferenceAttention, ReferenceStep
from quire.models.batch import Batch
from quire.models.config import LayerFacts
from quire.models.kv.kv_store import KVStore
from tests.models.attention.cases import KINDS
from tests.models.attention.scene import Scene, Shape, Span
from tests.models.attention.test_backends import assert_right

Fault = Callable[[LayerFacts, Tensor], tuple[LayerFacts, Tensor]]
"""What becomes of a layer and its query."""


def rounded_to_float16(layer: LayerFacts, query: Tensor) -> tuple[LayerFacts, Tensor]:
    return layer, query.half().to(query.dtype)


def scaled_by_a_thousandth_more(layer: LayerFacts, query: Tensor) -> tuple[LayerFacts, Tensor]:
    return replace(layer, scale=1.001 * layer.scale), query


def scaled_by_a_tenth_more(layer: LayerFacts, query: Tensor) -> tuple[LayerFacts, Tensor]:
    return replace(layer, scale=1.1 * layer.scale), query


def one_key_fewer(layer: LayerFacts, query: Tensor) -> tuple[LayerFacts, Tensor]:
    return replace(layer, window_size=(layer.window_size or 300) - 1), query


def head_of_another(layer: LayerFacts, query: Tensor) -> tuple[LayerFacts, Tensor]:
    return layer, query.roll(1, 1)


@dataclass(frozen=True)
class Faulty:
    """The reference, and a step of it, but for a fault."""

    inner: ReferenceAttention
    fault: Fault

    def begin(self, batch: Batch) -> "FaultyStep":
        return FaultyStep(self.inner.begin(batch), self.fault)


@dataclass(frozen=True)
class FaultyStep:
    inner: ReferenceStep
    fault: Fault

    def attend(
        self,
        layer: LayerFacts,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
    ) -> Tensor:
        return self.inner.attend(*self.fault(layer, query), key, value, sinks)


def assert_seen(fault: Fault, shape: Shape, spans: list[Span]) -> None:
    def backend(store: KVStore) -> Faulty:
        return Faulty(ReferenceAttention(store), fault)

    shape = replace(shape, num_heads=4)
    with pytest.raises(AssertionError, match="further off than rounding explains"):
        assert_right(backend, Scene(shape, spans))


@pytest.mark.parametrize(
    "fault", [rounded_to_float16, scaled_by_a_thousandth_more, head_of_another]
)
@pytest.mark.parametrize("spans", [[Span(500, 1)], [Span(20, 30)]], ids=["decode", "chunk"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_a_layer_in_float32_is_seen(kind: str, spans: list[Span], fault: Fault) -> None:
    assert_seen(fault, KINDS[kind], spans)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_one_key_of_hundreds_that_is_left_out_is_seen(dtype: torch.dtype) -> None:
    shape = replace(KINDS["full"], window_size=300, dtype=dtype)
    assert_seen(one_key_fewer, shape, [Span(500, 1), Span(400, 20)])


@pytest.mark.parametrize("fault", [scaled_by_a_tenth_more, head_of_another])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_a_fault_of_a_layer_in_16_bits_is_seen(dtype: torch.dtype, fault: Fault) -> None:
    assert_seen(fault, replace(KINDS["full"], dtype=dtype), [Span(60, 20)])
