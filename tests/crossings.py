"""What a device is given and asked, seen on torch's `meta` device, where tensors have shapes and no
values: an operation that needs a value, to know a shape or to tell the host, raises.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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
