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

Where tokens differ in size, a tensor holds several layers of a group in the place of fewer others,
so that a block has the same bytes in every group: for a narrow layer the tensor is one with twice
as many blocks of half the bytes, and block b of the group is the blocks 2b and 2b + 1 there.

                   tensor 0              tensor 1
    full           layer 2 | layer 5     layer 8 | layer 11     half as wide as the others
    sliding (a)    layer 0               layer 1
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import gcd, lcm
from typing import NamedTuple

from quire.cache.spec import FULL, AttentionPattern, KVSpec, TokenKV

ROW_ALIGNMENT = 16
"""The alignment for fast copies on a GPU: the bytes that one thread loads at once."""
MAX_TABLES = 16
"""Each group is one more block table for every request, and one more for each further layer that
shares its tensors: beyond this number, padding is the lesser cost.
"""
TYPICAL_TOKENS = 32768
"""The length of the request whose memory decides how layers are grouped."""


class KeptWhole(StrEnum):
    """The reason why layers with windows or chunks keep every token, in words."""

    OPTION = "--disable-hybrid-kv-cache-manager is set"
    UNEQUAL = "their K and V and those of other layers do not divide into blocks of equal bytes"
    COSTLY = "groups of layers with blocks of equal bytes would take more memory"


class LayerForm(NamedTuple):
    """The layers whose tokens take `token_kv`: `num_parts` of them lie in one cache tensor."""

    token_kv: TokenKV
    num_parts: int = 1


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """The memory of one layer of each group, or of several narrower ones in its place.

    Keys and values of all `forms` are the same bytes. Scales are too, where they divide alike;
    otherwise each form has its own, which are a hundredth of the rest.
    """

    forms: tuple[LayerForm, ...]

    @property
    def shares_scales(self) -> bool:
        """Return whether the scales of all forms are the same bytes."""
        return len({parts * kv.num_kv_heads * kv.scale_bytes for kv, parts in self.forms}) == 1

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """The bytes of a token in each part that is apart in memory: keys, values and scales."""
        token_kv, num_parts = self.forms[0]
        num_elements = 1 if token_kv.is_latent else 2
        elements = [num_parts * part for part in token_kv.part_bytes[:num_elements]]
        scaled = self.forms[:1] if self.shares_scales else self.forms
        return (
            *elements,
            *(parts * part for kv, parts in scaled for part in kv.part_bytes[num_elements:]),
        )

    @property
    def token_bytes(self) -> int:
        return sum(self.part_bytes)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table, all of one form.

    Their tokens are kept as `pattern` says. Where layers see less than that, `seen[p]` is the
    pattern of `layers[p]`. `layers` are indices into the specs; those of one tensor follow each
    other. `form` is the index of their form in every tensor.
    """

    pattern: AttentionPattern
    layers: tuple[int, ...]
    seen: tuple[AttentionPattern, ...] = ()
    form: int = 0

    @property
    def is_kept_whole(self) -> bool:
        """Return whether layers with a window or chunks keep every token all the same."""
        return bool(self.seen)

    def seen_by(self, position: int) -> AttentionPattern:
        """Return the attention pattern of `layers[position]`."""
        return self.seen[position] if self.seen else self.pattern


class BlockTableForm(NamedTuple):
    """The block table of the layers that are number `part` of `num_parts` in their cache tensors:
    block b of the group is block b * num_parts + part there."""

    group: int
    num_parts: int = 1
    part: int = 0


class LayerPlace(NamedTuple):
    """The place of a layer: the index of its block table (`Layout.tables`), of its cache tensor,
    and of its form there."""

    table: int
    tensor: int
    form: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The layer groups of a model and the cache tensors that hold them.

    Several groups have tensors that are all alike. A model without attention has no groups.

    sharing: for each layer that attends over the K and V of an earlier one, and so keeps none, the
        index of that one.
    kept_whole: why layers with windows or chunks keep every token; None where none does.
    """

    groups: tuple[LayerGroup, ...]
    tensors: tuple[CacheTensor, ...]
    sharing: tuple[tuple[int, int], ...] = ()
    kept_whole: KeptWhole | None = None

    @property
    def patterns(self) -> tuple[AttentionPattern, ...]:
        return tuple(group.pattern for group in self.groups)

    @property
    def forms(self) -> tuple[LayerForm, ...]:
        """The forms of all layers, each once."""
        return tuple(dict.fromkeys(form for tensor in self.tensors for form in tensor.forms))

    def form(self, group: LayerGroup, position: int) -> LayerForm:
        """Return the form of `group.layers[position]`."""
        return self.tensors[position // self.num_parts(group)].forms[group.form]

    def num_parts(self, group: LayerGroup) -> int:
        """Return how many layers of the group lie in one cache tensor."""
        return self.tensors[0].forms[group.form].num_parts

    @property
    def tables(self) -> tuple[BlockTableForm, ...]:
        """The block tables by which layers attend: one for each group, in their order, or several
        where its layers share tensors."""
        return tuple(
            BlockTableForm(index, self.num_parts(group), part)
            for index, group in enumerate(self.groups)
            for part in range(min(self.num_parts(group), len(group.layers)))
        )

    def layer_places(self) -> dict[int, LayerPlace]:
        """Return the place of every layer; layers that share K and V have the same one."""
        tables = {(table.group, table.part): at for at, table in enumerate(self.tables)}
        places = {}
        for index, group in enumerate(self.groups):
            for position, layer in enumerate(group.layers):
                tensor, part = divmod(position, self.num_parts(group))
                places[layer] = LayerPlace(tables[index, part], tensor, group.form)
        return places | {layer: places[source] for layer, source in self.sharing}

    @property
    def num_places(self) -> int:
        """The number of layers that the groups have room for."""
        return sum(len(self.tensors) * self.num_parts(group) for group in self.groups)

    @property
    def num_padding(self) -> int:
        """The number of places that hold no layer."""
        return self.num_places - sum(len(group.layers) for group in self.groups)

    @property
    def layer_bytes(self) -> int:
        """The bytes of a token in all layers, without any padding."""
        return sum(
            self.form(group, position).token_kv.token_bytes
            for group in self.groups
            for position in range(len(group.layers))
        )

    @property
    def padding_share(self) -> float:
        """The share of KV memory that holds no layer."""
        num_bytes = len(self.groups) * self.block_bytes(1)
        return (num_bytes - self.layer_bytes) / num_bytes if num_bytes else 0.0

    def block_bytes(self, block_size: int) -> int:
        """Return the bytes of one block id over all cache tensors."""
        return block_size * sum(tensor.token_bytes for tensor in self.tensors)

    def host_block_bytes(self, block_size: int) -> int:
        """Return the bytes of one block on the host, where it is a row with the parts of all cache
        tensors, each aligned. It is `block_bytes` where parts are multiples of ROW_ALIGNMENT: in
        any case but one, blocks of 8 tokens and an odd number of elements of one byte.
        """
        return sum(
            aligned(block_size * part) for tensor in self.tensors for part in tensor.part_bytes
        )

    @property
    def passed_token_bytes(self) -> int:
        """The bytes that are kept of a token which all windows and chunks have passed."""
        return sum(self.block_bytes(1) for group in self.groups if group.pattern.size is None)

    @property
    def unseen_token_bytes(self) -> int:
        """The part of `passed_token_bytes` in layers that will never see the token again."""
        return sum(
            self.form(group, position).token_kv.token_bytes
            for group in self.groups
            for position, pattern in enumerate(group.seen)
            if pattern.size is not None
        )

    def max_blocks(self, num_tokens: int, *, block_size: int, max_chunk_tokens: int) -> int:
        """Return the most blocks that a request of `num_tokens` ever holds, over all groups."""
        return sum(
            pattern.max_blocks(num_tokens, block_size=block_size, max_chunk_tokens=max_chunk_tokens)
            for pattern in self.patterns
        )


def aligned(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to whole ROW_ALIGNMENTs."""
    return -(-num_bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT


def build_layout(
    specs: Sequence[KVSpec | None], *, hybrid: bool = True, sources: Mapping[int, int] | None = None
) -> Layout:
    """Return the groups for `specs`, which has one entry for each layer in order; None where a
    layer has no attention, or keeps no K and V of its own.

    `sources` has the layers that attend over the K and V of an earlier one, by their index, and
    the index of that one. Several groups need tokens that divide into tensors of equal bytes. Where
    they do not, or where groups would save nothing, and where `hybrid` is false, all layers form
    one group that keeps everything: their windows then save no memory.
    """
    known = {index: spec for index, spec in enumerate(specs) if spec is not None}
    sharing = tuple(sorted((sources or {}).items()))
    patterns = {spec.pattern for spec in known.values()}
    if len(patterns) <= 1 and (hybrid or patterns <= {FULL}):
        groups = tuple(LayerGroup(pattern, tuple(known)) for pattern in patterns)
        return Layout(groups, _own_tensors(known), sharing)
    grouped = _group(known, sharing)
    if hybrid and isinstance(grouped, Layout):
        return grouped
    why = KeptWhole.OPTION if isinstance(grouped, Layout) else grouped
    group = LayerGroup(FULL, tuple(known), tuple(spec.pattern for spec in known.values()))
    return Layout((group,), _own_tensors(known), sharing, why)


def _own_tensors(known: Mapping[int, KVSpec]) -> tuple[CacheTensor, ...]:
    """Return a cache tensor for each layer."""
    return tuple(CacheTensor((LayerForm(spec.token_kv),)) for spec in known.values())


class LayerKind(NamedTuple):
    """The layers of one pattern and form: `num_layers`, of which `num_parts` lie in one tensor."""

    pattern: AttentionPattern
    num_layers: int
    num_parts: int = 1

    def num_groups(self, num_tensors: int) -> int:
        """Return the number of groups of the layers over so many cache tensors."""
        return -(-self.num_layers // (num_tensors * self.num_parts))

    def num_tables(self, num_tensors: int) -> int:
        """Return the number of block tables of these groups."""
        num_full, rest = divmod(self.num_layers, num_tensors * self.num_parts)
        return num_full * self.num_parts + min(rest, self.num_parts)


def choose_num_tensors(kinds: Sequence[LayerKind]) -> int:
    """Return the number of cache tensors with which a request takes the least memory, of those that
    MAX_TABLES block tables allow, and of equals the largest, so the fewest groups.

    The request has TYPICAL_TOKENS, or several times the longest window: padding in groups that keep
    every token weighs more than padding in windows.
    """
    most = max(-(-kind.num_layers // kind.num_parts) for kind in kinds)

    def num_tables(size: int) -> int:
        return sum(kind.num_tables(size) for kind in kinds)

    allowed = max(MAX_TABLES, num_tables(most))
    sizes = [size for size in range(1, most + 1) if num_tables(size) <= allowed]
    return min(sizes, key=lambda size: (request_tensors(kinds, size), -size))


def request_tensors(kinds: Sequence[LayerKind], num_tensors: int) -> int:
    """Return the memory of the request that decides, in tokens of one cache tensor."""
    length = _deciding_length(kinds)
    return num_tensors * sum(
        kind.num_groups(num_tensors) * (kind.pattern.size or length) for kind in kinds
    )


def _deciding_length(kinds: Sequence[LayerKind]) -> int:
    return max(TYPICAL_TOKENS, *(4 * (kind.pattern.size or 0) for kind in kinds))


def common_forms(token_kvs: Sequence[TokenKV]) -> tuple[LayerForm, ...] | None:
    """Return the forms by which layers of all these sizes lie in tensors of equal bytes, each once
    and in order; None where keys and values would divide otherwise.
    """
    distinct = tuple(dict.fromkeys(token_kvs))
    sizes = [kv.part_bytes[: 1 if kv.is_latent else 2] for kv in distinct]
    units = [gcd(*parts) for parts in sizes]
    pairs = zip(sizes, units, strict=True)
    if len({tuple(part // unit for part in parts) for parts, unit in pairs}) > 1:
        return None
    width = lcm(*units)
    return tuple(LayerForm(kv, width // unit) for kv, unit in zip(distinct, units, strict=True))


def _group(known: Mapping[int, KVSpec], sharing: tuple[tuple[int, int], ...]) -> Layout | KeptWhole:
    """Return several groups for layers that need their tokens differently long, or why there are
    none."""
    forms = common_forms([spec.token_kv for spec in known.values()])
    if forms is None:
        return KeptWhole.UNEQUAL
    at = {form.token_kv: index for index, form in enumerate(forms)}
    buckets: dict[tuple[AttentionPattern, int], list[int]] = {}
    for layer, spec in known.items():
        buckets.setdefault((spec.pattern, at[spec.token_kv]), []).append(layer)
    kinds = [
        LayerKind(pattern, len(layers), forms[form].num_parts)
        for (pattern, form), layers in buckets.items()
    ]
    size = choose_num_tensors(kinds)
    ordered = sorted(buckets.items(), key=lambda item: item[0][0].size is not None)
    groups = tuple(
        LayerGroup(pattern, tuple(part), form=form)
        for (pattern, form), layers in ordered
        for part in _parts(layers, size * forms[form].num_parts)
    )
    layout = Layout(groups, (CacheTensor(forms),) * size, sharing)
    grouped_bytes = request_tensors(kinds, size) * layout.tensors[0].token_bytes
    if len(forms) > 1 and grouped_bytes > _deciding_length(kinds) * layout.layer_bytes:
        return KeptWhole.COSTLY
    return layout


def _parts(layers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (layers[first : first + size] for first in range(0, len(layers), size))


def unify(layouts: Sequence[Layout]) -> Layout:
    """Return the one layout of several ranks, whose block tables are the same.

    Raises ValueError if there are no ranks, or if their groups or the bytes of a block differ.
    """
    if not layouts:
        raise ValueError("there are no ranks to unify")
    first = layouts[0]
    for rank, layout in enumerate(layouts):
        if (layout.groups, layout.tables) != (first.groups, first.tables):
            raise ValueError(f"rank {rank} groups its layers otherwise than rank 0")
        if layout.block_bytes(1) != first.block_bytes(1):
            raise ValueError(
                f"a token of a block takes {layout.block_bytes(1)} bytes in rank {rank} and "
                f"{first.block_bytes(1)} in rank 0: all ranks must hold equal parts of the KV "
                "heads, in the same KV cache dtype"
            )
    return first
