"""Layers in groups, so that one pool of block ids serves all of them.

Layers of one group need their tokens equally long and share one block table. Each group has up to
as many layers as there are cache tensors, and layer p of every group lies in tensor p:

                   tensor 0    tensor 1
    full           layer 2     layer 5        a block id given to a request in group "full" is
    sliding (a)    layer 0     layer 1        a row of both tensors; the same id in another
    sliding (b)    layer 3     layer 4        group would be the same memory, so ids are taken
    sliding (c)    layer 6     (padding)      from one pool and never given twice

Few tensors mean many groups; many tensors mean padding where a kind's layers do not fill its last
group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.cache.spec import FULL, AttentionPattern, KVSpec, TokenKV

ROW_ALIGNMENT = 16
"""The alignment for fast copies on a GPU: the bytes that one thread loads at once."""
MAX_GROUPS = 16
"""Each group is one more block table for every request: beyond this number, padding is the lesser
cost.
"""


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table. `layers[p]`, an index into the specs, lies in cache tensor
    p. Its tokens are kept as `pattern` says. Where layers see less than that, `seen[p]` is what
    layer p sees.
    """

    pattern: AttentionPattern
    layers: tuple[int, ...]
    seen: tuple[AttentionPattern, ...] = ()

    @property
    def is_kept_whole(self) -> bool:
        """Return whether layers with a window or chunks keep every token all the same."""
        return bool(self.seen)

    def seen_by(self, tensor: int) -> AttentionPattern:
        """Return the attention pattern of the layer in this cache tensor."""
        return self.seen[tensor] if self.seen else self.pattern


@dataclass(frozen=True, slots=True)
class Layout:
    """The layer groups of a model and the cache tensors that hold them.

    `token_kvs[p]` is what a token takes in cache tensor p. A model without attention has no groups.
    """

    groups: tuple[LayerGroup, ...]
    token_kvs: tuple[TokenKV, ...]

    @property
    def patterns(self) -> tuple[AttentionPattern, ...]:
        return tuple(group.pattern for group in self.groups)

    @property
    def num_padding(self) -> int:
        """The number of (group, tensor) pairs that hold no layer."""
        return sum(len(self.token_kvs) - len(group.layers) for group in self.groups)

    @property
    def padding_share(self) -> float:
        """The share of KV memory that holds no layer."""
        num_places = len(self.groups) * len(self.token_kvs)
        return self.num_padding / num_places if num_places else 0.0

    def block_bytes(self, block_size: int) -> int:
        """Return the bytes of one block id over all cache tensors."""
        return block_size * sum(token_kv.token_bytes for token_kv in self.token_kvs)

    def host_block_bytes(self, block_size: int) -> int:
        """Return the bytes of one block on the host, where it is a row with the parts of all cache
        tensors, each aligned. It is `block_bytes` where parts are multiples of ROW_ALIGNMENT: in
        any case but one, blocks of 8 tokens and an odd number of elements of one byte.
        """
        return sum(
            aligned(block_size * part)
            for token_kv in self.token_kvs
            for part in token_kv.part_bytes
        )

    @property
    def is_kept_whole(self) -> bool:
        """Return whether layers with a window or chunks keep every token all the same."""
        return any(group.is_kept_whole for group in self.groups)

    @property
    def passed_token_bytes(self) -> int:
        """The bytes that are kept of a token which all windows and chunks have passed."""
        return sum(self.block_bytes(1) for group in self.groups if group.pattern.size is None)

    @property
    def unseen_token_bytes(self) -> int:
        """The part of `passed_token_bytes` in layers that will never see the token again."""
        return sum(
            token_kv.token_bytes
            for group in self.groups
            for token_kv, pattern in zip(self.token_kvs, group.seen, strict=False)
            if pattern.size is not None
        )

    def max_blocks(self, num_tokens: int, *, block_size: int, max_chunk_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` ever holds, over all groups."""
        return sum(
            pattern.max_blocks(num_tokens, block_size=block_size, max_chunk_tokens=max_chunk_tokens)
            for pattern in self.patterns
        )

    def tensor_indices(self) -> dict[int, tuple[int, int]]:
        """Return the (group, cache tensor) indices of every layer."""
        return {
            layer: (index, tensor)
            for index, group in enumerate(self.groups)
            for tensor, layer in enumerate(group.layers)
        }


def aligned(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to whole ROW_ALIGNMENTs."""
    return -(-num_bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT


def build_layout(specs: Sequence[KVSpec | None], *, hybrid: bool = True) -> Layout:
    """Return the groups for `specs`, which has one entry for each layer in order; None where a
    layer has no attention.

    Several groups need TokenKVs of one shape of memory. Where these differ, and where `hybrid` is
    false, all layers form one group that keeps everything: their windows then save no memory.
    """
    layers = [index for index, spec in enumerate(specs) if spec is not None]
    known = [spec for spec in specs if spec is not None]
    if not known:
        return Layout((), ())
    if has_same_pattern(known) and (hybrid or known[0].pattern == FULL):
        group = LayerGroup(known[0].pattern, tuple(layers))
        return Layout((group,), tuple(spec.token_kv for spec in known))
    if not hybrid or not has_same_token_kv(known):
        group = LayerGroup(FULL, tuple(layers), tuple(spec.pattern for spec in known))
        return Layout((group,), tuple(spec.token_kv for spec in known))
    buckets: dict[AttentionPattern, list[int]] = {}
    for layer, spec in zip(layers, known, strict=True):
        buckets.setdefault(spec.pattern, []).append(layer)
    size = choose_group_size([len(bucket) for bucket in buckets.values()])
    ordered = sorted(buckets.items(), key=lambda item: item[0].size is not None)
    groups = [
        LayerGroup(pattern, tuple(bucket[first : first + size]))
        for pattern, bucket in ordered
        for first in range(0, len(bucket), size)
    ]
    return Layout(tuple(groups), (known[0].token_kv,) * size)


def choose_group_size(counts: Sequence[int]) -> int:
    """Return the number of layers in a group, for `counts` layers of each kind: the one with the
    least padding that at most MAX_GROUPS groups allow, and of equals the largest, so the fewest
    groups.

    The greatest common divisor of the counts (no padding, perhaps many groups) and their minimum
    (few groups, perhaps much padding) are among the sizes compared.
    """
    sizes = [
        size
        for size in range(1, max(counts) + 1)
        if _num_groups(counts, size) <= max(MAX_GROUPS, len(counts))
    ]
    return min(sizes, key=lambda size: (num_padding(counts, size), -size))


def num_padding(counts: Iterable[int], size: int) -> int:
    """Return how many entries stay empty when `counts` layers of each kind fill groups of
    `size`.
    """
    return sum(-count % size for count in counts)


def has_same_pattern(specs: Sequence[KVSpec]) -> bool:
    """Return whether all layers need their tokens equally long."""
    return len({spec.pattern for spec in specs}) <= 1


def has_same_token_kv(specs: Sequence[KVSpec]) -> bool:
    """Return whether one tensor's rows can hold the tokens of any of them."""
    return len({spec.token_kv for spec in specs}) <= 1


def unify(layouts: Sequence[Layout]) -> Layout:
    """Return the one layout of several ranks, whose block tables are the same.

    Raises ValueError if there are no ranks, or if their groups or the bytes of a block differ.
    """
    if not layouts:
        raise ValueError("there are no ranks to unify")
    first = layouts[0]
    for rank, layout in enumerate(layouts):
        if layout.groups != first.groups:
            raise ValueError(f"rank {rank} groups its layers otherwise than rank 0")
        if layout.block_bytes(1) != first.block_bytes(1):
            raise ValueError(
                f"a token of a block takes {layout.block_bytes(1)} bytes in rank {rank} and "
                f"{first.block_bytes(1)} in rank 0: all ranks must hold equal parts of the KV "
                "heads, in the same KV cache dtype"
            )
    return first


def _num_groups(counts: Iterable[int], size: int) -> int:
    return sum(-(-count // size) for count in counts)
