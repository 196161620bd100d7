// AMX: eight registers, tiles of up to 16 rows of 64 bytes each, whose products are sums of 32
// products of bfloat16, or of 64 of bytes, for each of 16 x 16 places.
//
// Here tiles 0 to 3 hold sums, two by two, 4 and 5 rows of x, upper and lower, 6 and 7 weights, left
// and right: those of tile 6 belong to the sums 0 and 2.
#pragma once

#include "common/common.h"

#if QUIRE_HAS_TILES

namespace {

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t BLOCK_ROWS = 2 * TILE_ROWS;  // of x, in the two tiles that hold them

struct TileShape {
    int64_t rows, row_bytes;
};

// As ldtilecfg reads it.
struct alignas(LINE) TileShapes {
    uint8_t palette = 1, start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit TileShapes(const TileShape (&shapes)[8]) {
        for (int i = 0; i < 8; i++) {
            rows[i] = uint8_t(larger(shapes[i].rows, 1));
            row_bytes[i] = uint16_t(shapes[i].row_bytes);
        }
    }
};

// What tiles read is written, and the other way round: the compiler does not see it.
inline void settle() { asm volatile("" ::: "memory"); }

// A thread's tiles, as long as it has them: whoever else uses them sets its own shapes.
class Tiles {
    int64_t shaped = 0;

   public:
    Tiles() = default;
    Tiles(const Tiles&) = delete;
    ~Tiles() {
        if (shaped) _tile_release();
    }

    // For up to BLOCK_ROWS rows of x, and products of `row_bytes` of each. All that is in the tiles is
    // lost, unless they have this shape. Where there are no lower rows, tiles 2, 3 and 5 have a column
    // for each row instead, if rows are whole lines.
    void shape(int64_t num_rows, int64_t row_bytes = LINE) {
        const int64_t wanted = num_rows * (LINE + 1) + row_bytes;
        if (wanted == shaped) return;
        const int64_t upper = smaller(num_rows, TILE_ROWS), lower = num_rows - upper;
        const TileShape weights = {row_bytes / 4, LINE};
        TileShape sums = {lower, LINE}, rows = {lower, row_bytes};
        if (lower == 0 && row_bytes == LINE) sums = rows = {TILE_ROWS, upper * 4};
        const TileShapes shapes({{upper, LINE}, {upper, LINE}, sums, sums,
                                 {upper, row_bytes}, rows, weights, weights});
        asm volatile("" ::"r"(&shapes) : "memory");  // all of it is read
        _tile_loadconfig(&shapes);
        shaped = wanted;
    }
};

inline void clear_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// A tile whose rows lie so many bytes apart, past the first-level cache if IS_STREAM. The tile has to
// be written as a number: its name is made of that.
#define QUIRE_LOAD_TILE(TILE, FROM, STRIDE, IS_STREAM) \
    do {                                               \
        if (IS_STREAM)                                 \
            _tile_stream_loadd(TILE, FROM, STRIDE);    \
        else                                           \
            _tile_loadd(TILE, FROM, STRIDE);           \
    } while (0)

// Numbers of four bytes, `stride` in a row.
template <bool HAS_LOWER, bool IS_STREAM = false>
inline void load_sums(const void* from, int64_t stride) {
    const char* upper = (const char*)from;
    const char* lower = upper + TILE_ROWS * stride * 4;
    settle();
    QUIRE_LOAD_TILE(0, upper, stride * 4, IS_STREAM);
    QUIRE_LOAD_TILE(1, upper + LINE, stride * 4, IS_STREAM);
    if (HAS_LOWER) {
        QUIRE_LOAD_TILE(2, lower, stride * 4, IS_STREAM);
        QUIRE_LOAD_TILE(3, lower + LINE, stride * 4, IS_STREAM);
    }
}

template <bool HAS_LOWER>
inline void store_sums(void* to, int64_t stride) {
    char* upper = (char*)to;
    char* lower = upper + TILE_ROWS * stride * 4;
    _tile_stored(0, upper, stride * 4);
    _tile_stored(1, upper + LINE, stride * 4);
    if (HAS_LOWER) {
        _tile_stored(2, lower, stride * 4);
        _tile_stored(3, lower + LINE, stride * 4);
    }
    settle();
}

}  // namespace

#endif
