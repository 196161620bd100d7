"""A draw never waits for its device. Shown on `meta`, where tensors have shapes and no values: an
operation that needs one, to know a shape or to tell the host, raises. `cuda` draws by the same code
but for how copies are made.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from hypothesis import given
from torch import Tensor
from torch.overrides import TorchFunctionMode

from quire.engine.sample_row import SampleRow
from quire.engine.torch_sampler import TorchSampler
from tests.engine.sampler_cases import MIXED, batches, row_of

META = torch.device("meta")
FROM_LISTS = (torch.tensor, torch.as_tensor, torch.asarray)
INDEXING = (Tensor.__getitem__, Tensor.__setitem__)


def tensors(values: object) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors(list(values.values()))
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for value in values:
            yield from tensors(value)


def has_list(index: object) -> bool:
    return isinstance(index, list) or (isinstance(index, tuple) and any(map(has_list, index)))


class Crossings(TorchFunctionMode):
    """Counts the operations that bring numbers of the host to the device: each may be a copy from
    memory that is not pinned, which waits."""

    num = 0

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        given = kwargs or {}
        answer = func(*args, **given)
        reaches_device = any(each.is_meta for each in tensors((args, given, answer)))
        has_numbers = func in FROM_LISTS or any(not each.is_meta for each in tensors((args, given)))
        has_numbers |= func in INDEXING and has_list(args[1])
        self.num += reaches_device and has_numbers
        return answer


def draw_without_values(logits: Tensor, rows: list[SampleRow]) -> None:
    sampler = TorchSampler(logits.shape[1], META)
    logits = logits.to(META)
    with Crossings() as crossings:
        drawn = sampler.draw(logits, rows)
    assert crossings.num == 1
    assert drawn.token_ids.is_meta
    assert drawn.token_ids.dtype is torch.int64
    assert drawn.token_ids.shape == (len(rows),)


@given(batches())
def test_a_draw_asks_its_device_nothing(batch: tuple[Tensor, list[SampleRow]]) -> None:
    draw_without_values(*batch)


def test_draws_of_several_slabs_ask_their_device_nothing() -> None:
    rows = [row_of(MIXED[place % len(MIXED)], [place, 0, place]) for place in range(300)]
    draw_without_values(torch.empty(300, 151_936, device=META, dtype=torch.bfloat16), rows)
