"""The constants that each kernel is compiled for: they follow from a layer, a store and a tile."""

from dataclasses import dataclass

import torch
import triton.language as tl

from quire.models.attention.triton.tiles import (
    MAX_PARTS,
    WARP_SIZE,
    WRITE_ELEMENTS,
    DeviceProperties,
    TileShape,
    choose_tile,
    columns,
    max_registers,
    num_programs,
    split_size,
)
from quire.models.config import LayerFacts
from quire.models.kv.kv_codec import Codec

NUM_WARPS = 4
"""Warps of the kernels that only copy numbers: Triton's default."""
DTYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
MIN_WORD_COLUMNS = 128
"""A quarter of them has 32: each of four warps multiplies its own 8."""
COUNTED_AT_ONCE = 256
COMBINED_AT_ONCE = 8
"""Parts of a context: few enough that 512 columns of each fit in registers."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer of `num_heads` query heads, with its store, on a device."""

    layer: LayerFacts
    num_heads: int
    codec: Codec
    block_size: int
    device: DeviceProperties

    @property
    def group(self) -> int:
        return self.num_heads // self.layer.num_kv_heads

    @property
    def number(self) -> int:
        """FORMAT of the kernels."""
        if not self.codec.is_quantised:
            return 0
        return 2 if self.codec.number.is_floating_point else 1

    @property
    def _is_packed(self) -> bool:
        """Whether assembly widens the stored K and V."""
        is_narrow = self.codec.dtype.itemsize == 2
        return self.codec.is_quantised and is_narrow and not self.device.is_interpreted

    def is_shared(self, max_context: int) -> bool:
        """Return whether several programs share a context of this maximum length, in parts of at
        least `min_split_keys` keys."""
        return min(max_context, self.layer.pattern.size or max_context) > self.device.min_split_keys

    def num_programs(self, tile: TileShape) -> int:
        return num_programs(self.layer, self.codec, tile, self.device)

    def max_registers(self, tile: TileShape) -> int | None:
        return max_registers(self.layer, self.codec, tile, self.device)

    def tile(self, longest_chunk: int) -> TileShape:
        most_rows = longest_chunk * self.group
        return choose_tile(self.layer, self.codec, most_rows, self.device)

    def heads(self, tile: TileShape) -> int:
        """Return how many query heads of one K/V head a tile has."""
        return min(self.group, tile.rows)

    def tokens(self, tile: TileShape) -> int:
        return tile.rows // self.heads(tile)

    @property
    def write_rows(self) -> int:
        """Return the number of vectors per program of `write`."""
        return max(1, WRITE_ELEMENTS // columns(max(self.layer.head_size, self.layer.v_head_size)))

    def num_head_tiles(self, tile: TileShape) -> int:
        return self.layer.num_kv_heads * -(-self.group // self.heads(tile))

    def chunk_constants(self, tile: TileShape) -> dict[str, object]:
        """Return the constants of `attend_chunks`. Latent keys in one byte leave no registers for a
        loop without masks beside the one with them."""
        copies = max(1, WARP_SIZE * tile.num_warps // tile.keys)
        return {
            **self._attend_constants(tile),
            "TOKENS": self.tokens(tile),
            "COPIES": copies,
            "HAS_WHOLE": not (self.layer.is_latent and self.codec.is_quantised),
        }

    def token_constants(self, tile: TileShape, *, is_shared: bool) -> dict[str, object]:
        """Return the constants of `attend_tokens`."""
        constants = self._attend_constants(tile)
        return {**constants, "HAS_WORDS": self._has_words, "IS_SHARED": is_shared}

    @property
    def _has_words(self) -> bool:
        """Whether values are read four columns at once."""
        size = self.layer.v_head_size
        is_apart = self.codec.is_quantised and not self.layer.is_latent
        return is_apart and size % 4 == 0 and columns(size) >= MIN_WORD_COLUMNS

    def _attend_constants(self, tile: TileShape) -> dict[str, object]:
        """Return what both have. The interpreter lacks bfloat16, and takes float32."""
        layer = self.layer
        main, rest = split_size(layer.head_size)
        v_columns = columns(layer.v_head_size)
        is_key = layer.is_latent and v_columns == main
        compute = torch.float32 if self.device.is_interpreted else self.codec.dtype
        return {
            "KV_HEADS": layer.num_kv_heads,
            "GROUP": self.group,
            "HEAD_SIZE": layer.head_size,
            "V_HEAD_SIZE": layer.v_head_size,
            "K_MAIN": main,
            "K_REST": rest,
            "V_COLUMNS": v_columns,
            "VALUE_STRIDE": 0
            if is_key
            else layer.head_size
            if layer.is_latent
            else layer.v_head_size,
            "BLOCK_SIZE": self.block_size,
            "WINDOW_SIZE": layer.window_size or 0,
            "CHUNK_SIZE": layer.chunk_size or 0,
            "HAS_CAP": layer.softcap is not None,
            "HAS_SINKS": layer.has_sinks,
            "FORMAT": self.number,
            "COMPUTE": DTYPES[compute],
            "IS_PACKED": self._is_packed,
            "ROWS": tile.rows,
            "KEYS": tile.keys,
            "HEADS": self.heads(tile),
        }

    def list_constants(self, tile: TileShape) -> dict[str, object]:
        """Return the constants of `count_tiles`."""
        return {
            "WINDOW_SIZE": self.layer.window_size or 0,
            "CHUNK_SIZE": self.layer.chunk_size or 0,
            "HEAD_TILES": self.num_head_tiles(tile),
            "KEYS": tile.keys,
            "MAX_PARTS": MAX_PARTS,
            "AT_ONCE": COUNTED_AT_ONCE,
        }

    def combine_constants(self, tile: TileShape) -> dict[str, object]:
        return {
            "KV_HEADS": self.layer.num_kv_heads,
            "GROUP": self.group,
            "HEADS": self.heads(tile),
            "V_HEAD_SIZE": self.layer.v_head_size,
            "V_COLUMNS": columns(self.layer.v_head_size),
            "HAS_SINKS": self.layer.has_sinks,
            "AT_ONCE": COMBINED_AT_ONCE,
        }

    def write_constants(self) -> dict[str, object]:
        layer = self.layer
        return {
            "HEADS": layer.num_kv_heads,
            "HEAD_SIZE": layer.head_size,
            "V_HEAD_SIZE": 0 if layer.is_latent else layer.v_head_size,
            "K_COLUMNS": columns(layer.head_size),
            "V_COLUMNS": columns(layer.v_head_size),
            "ROWS": self.write_rows,
            "FORMAT": self.number,
            "PEAK": self.codec.peak or 0.0,
        }
