"""The arguments that all launches of a layer share, in every step. They are made once: the host
prepares each layer of each step that is launched operation by operation."""

import math
from typing import NamedTuple

from torch import Tensor

from quire.models.attention.triton.launch import AttentionLayer
from quire.models.attention.triton.tiles import TileShape
from quire.models.kv.kv_store import KVStore

LOG2_E = math.log2(math.e)
Options = dict[str, object]
"""Keyword arguments of a kernel: its constants, warps, stages and most registers of a thread."""


class TileLaunch(NamedTuple):
    """A launch of `attend_chunks` or `attend_tokens`, of tiles of so many tokens."""

    tokens: int
    num_head_tiles: int
    options: Options


class SharedLaunch(NamedTuple):
    """A launch of contexts that programs share: of `attend_tokens`, of `count_tiles` before it and
    of `combine` after it. Layers of one `key` share the list of `count_tiles`."""

    num_programs: int
    heads: int
    min_tiles: int
    key: tuple[object, ...]
    tokens: Options
    counts: Options
    combine: Options


class LayerLaunch:
    """The arguments of a layer's launches over a store.

    table: the index of its slots and block table in a step.
    written: elements and scales of keys and values, None where there are none, as `write` has them.
    sources: the same, as the kernels that attend take them.
    numbers: the scale and the cap.
    """

    def __init__(self, form: AttentionLayer, store: KVStore) -> None:
        layer = form.layer
        self.form = form
        self.table, index = store.layer_tensors[layer.index]
        keys, values = store.keys[index], store.values[index]
        given = values or keys
        self.written: tuple[Tensor | None, ...] = (
            keys.elements,
            None if values is None else values.elements,
            keys.scales,
            None if values is None else values.scales,
        )
        self.sources = keys.elements, given.elements, keys.scales, given.scales
        cap = layer.softcap or 0.0
        scale = 2 * layer.scale / cap if cap else layer.scale
        self.numbers = (scale * LOG2_E, cap * LOG2_E)
        self.write_rows = form.write_rows
        self.write_options = form.write_constants()
        self._chunks: dict[TileShape, TileLaunch] = {}
        tile = form.tile(1)
        self.tokens = self._token_launch(tile, is_shared=False)
        self.shared = self._shared_launch(tile)

    def chunks(self, longest_chunk: int) -> TileLaunch:
        """Return the launch of `attend_chunks` in a step whose longest chunk has so many tokens."""
        tile = self.form.tile(longest_chunk)
        launch = self._chunks.get(tile)
        if launch is None:
            launch = self._tile_launch(tile, self.form.chunk_constants(tile))
            self._chunks[tile] = launch
        return launch

    def _tile_launch(self, tile: TileShape, constants: Options) -> TileLaunch:
        form = self.form
        options = {**constants, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
        return TileLaunch(form.tokens(tile), form.num_head_tiles(tile), options)

    def _token_launch(self, tile: TileShape, *, is_shared: bool) -> TileLaunch:
        launch = self._tile_launch(tile, self.form.token_constants(tile, is_shared=is_shared))
        most = self.form.max_registers(tile)
        if most is not None:
            launch.options["maxnreg"] = most
        return launch

    def _shared_launch(self, tile: TileShape) -> SharedLaunch:
        form = self.form
        num_programs, counts = form.num_programs(tile), form.list_constants(tile)
        tokens = self._token_launch(tile, is_shared=True)
        return SharedLaunch(
            num_programs,
            form.heads(tile),
            -(-form.device.min_split_keys // tile.keys),
            (num_programs, *counts.values()),
            tokens.options,
            counts,
            form.combine_constants(tile),
        )
