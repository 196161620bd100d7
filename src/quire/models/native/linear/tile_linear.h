// y = x W^T + bias for many rows of x, by tiles.
//
// A task is some rows of x by some panels. It goes through a panel's columns at once, or, if there
// are too many, part by part, and through all panels by each part: that is a stretch. Blocks of
// rows lie in the second-level cache, in the order in which tiles take them, and are loaded past
// the first, which weights fill. Each load of a line into the first takes long enough to be
// counted: the next stretch is decoded into the place of this one while its last block is
// multiplied, so that all it writes is there already. A block's product is put to y while the next
// one is computed.
//
// Rows whose columns are multiplied at once are copied by each thread, since lines that another
// core has as well come slower. Others are arranged once for all, unless they are arranged already:
// nothing else has to read what lies between the two products of an MLP.
#pragma once

#include "linear/tile_panels.h"
#include "common/ranges.h"

namespace {

constexpr int64_t MAX_CHUNKS = 32;   // chunks of a stretch
constexpr int64_t PART_CHUNKS = 14;  // chunks of a part, where there are several
constexpr int64_t NEAR_CHUNKS = 16;  // chunks that stay in the first-level cache
constexpr int64_t MAX_TASK_ROWS = 512;
constexpr int64_t MAX_TASK_BLOCKS = MAX_TASK_ROWS / BLOCK_ROWS;
constexpr int64_t MAX_TASK_PANELS = 16;

// A block's rows of x in a chunk, with zeros beyond the last column.
struct alignas(LINE) RowChunk {
    uint16_t rows[BLOCK_ROWS][CHUNK];
};

static_assert(CHUNK == PANEL, "what is put of y is taken as x");

// Rows of x or y, with the bytes from a row, a chunk and a block to the next one.
struct Matrix {
    char* at;
    int64_t row, chunk, block;

    char* place(int64_t from, int64_t column) const {
        return at + from / BLOCK_ROWS * block + from % BLOCK_ROWS * row + column / CHUNK * chunk;
    }
};

inline Matrix dense(const uint16_t* at, int64_t num_columns) {
    return {(char*)at, num_columns * 2, CHUNK * 2, BLOCK_ROWS * num_columns * 2};
}

// Returns a matrix in the order of tiles.
inline Matrix arranged(void* at, int64_t num_columns) {
    const int64_t size = sizeof(RowChunk);
    return {(char*)at, LINE, size, ratio_up(num_columns, CHUNK) * size};
}

inline bool has_parts(int64_t num_columns) { return ratio_up(num_columns, CHUNK) > MAX_CHUNKS; }

// Copies the rows `first` up to `end`, of one block, to the first ones of `to`.
inline void arrange(const Matrix& x, int64_t first, int64_t end, int64_t num_columns, RowChunk* to) {
    for (int64_t column = 0; column < num_columns; column += CHUNK, to++) {
        const int64_t left = num_columns - column;
        const __mmask32 is_there = left < CHUNK ? (1u << left) - 1 : ~0u;
        const char* from = x.place(first, column);
        for (int64_t i = 0; i < end - first; i++, from += x.row)
            _mm512_store_si512(to->rows[i], _mm512_maskz_loadu_epi16(is_there, from));
    }
}

struct Linear : LinearProduct {
    Matrix from, to;                // x, y
    Ranges ranges;                  // ranges of units
    int64_t task_rows, num_blocks;  // rows of x in a task, and the number of such blocks
    int64_t task_units, num_parts;  // the most units of a task, the parts of the columns

    Linear(const LinearProduct& product, const Matrix& from, const Matrix& to, int64_t num_threads)
        : LinearProduct(product),
          from(from),
          to(to),
          ranges(smaller(num_units(), smaller(num_threads, MAX_RANGES))) {
        const int64_t shared = smaller(ratio_up(num_threads, num_units()),
                                       ratio_up(num_rows, BLOCK_ROWS));  // where panels are few
        const bool is_parted = has_parts(weights.num_columns);
        const int64_t least = larger(ratio_up(num_rows, MAX_TASK_ROWS), shared);
        task_rows = round_up(ratio_up(num_rows, least), BLOCK_ROWS);
        num_blocks = ratio_up(num_rows, task_rows);
        num_parts = is_parted ? ratio_up(num_chunks(weights), PART_CHUNKS) : 1;
        task_units = is_parted ? MAX_TASK_PANELS / unit() : 1;
    }

    int64_t unit() const { return num_couples ? 2 : 1; }  // panels that stay together
    int64_t num_units() const { return weights.num_panels() / unit(); }
    int64_t num_tasks() const { return num_blocks * ratio_up(num_units(), task_units); }
};

// The memory of a thread.
struct alignas(LINE) Space {
    Chunk chunks[MAX_CHUNKS];
    Sums complete;
    __m512i gates[MAX_TASK_ROWS];  // a panel's gates, by rows of x
    union {
        RowChunk rows[MAX_TASK_BLOCKS * MAX_CHUNKS];
        Sums sums[MAX_TASK_PANELS * MAX_TASK_BLOCKS];  // sums over a part of the columns
    };
};

// The chunks of a panel, which is the `own`th of a task, by the task's rows. No end says that there
// is no stretch.
struct Stretch {
    int64_t first_row, end_row, panel, own, begin, end;

    int64_t count() const { return end - begin; }
    int64_t num_blocks() const { return ratio_up(end_row - first_row, BLOCK_ROWS); }
};

// A worker's way through all of its stretches.
class Way {
    const Linear& l;
    Claims claims;
    int64_t first_row = 0, end_row = 0;
    int64_t from = 0, count = 0;  // the task's panels, in an order in which couples stand together
    int64_t at = 0;               // the number of stretches that are done

    bool take() {
        const auto first = [&](int64_t i) { return l.ranges.begin(i, l.num_units()); };
        const auto num_groups = [&](int64_t i) {
            return ratio_up(first(i + 1) - first(i), l.task_units);
        };
        const auto size = [&](int64_t i) { return num_groups(i) * l.num_blocks; };
        int64_t range, task;
        if (!claims.take(size, range, task)) return false;
        const int64_t groups = num_groups(range), group = task % groups;
        const int64_t num_units = first(range + 1) - first(range);
        const auto unit = [&](int64_t i) { return first(range) + num_units * i / groups; };
        first_row = task / groups * l.task_rows;
        end_row = smaller(first_row + l.task_rows, l.num_rows);
        from = unit(group) * l.unit();
        count = unit(group + 1) * l.unit() - from;
        at = 0;
        return true;
    }

   public:
    Way(const Linear& l, Ranges& ranges) : l(l), claims(ranges) {}

    Stretch next() {
        if (at == l.num_parts * count && !take()) return {};
        const int64_t part = at / count, own = at % count, place = from + own;
        const int64_t panel = l.num_couples ? place / 2 + place % 2 * l.num_couples : place;
        const auto begin = [&](int64_t i) { return num_chunks(l.weights) * i / l.num_parts; };
        at++;
        return {first_row, end_row, panel, own, begin(part), begin(part + 1)};
    }
};

// Spreads things evenly over a number of times, so that all are done in time. Tiles go on beside
// what comes evenly; what comes at once stops them.
class Pace {
    static constexpr int64_t WHOLE = 256;
    int64_t rate = 0, due = 0;  // in parts of a thing, WHOLE to one

   public:
    Pace() = default;
    Pace(int64_t count, int64_t num_times) : rate(ratio_up(count * WHOLE, num_times)) {}

    template <class Act>
    __attribute__((always_inline)) inline void go_on(Act act) {
        for (due += rate; due >= WHOLE; due -= WHOLE) act();
    }
};

// Lines of memory to be fetched, evenly.
struct Lines {
    const char *next = nullptr, *end = nullptr;
    Pace pace;

    Lines() = default;
    Lines(const void* from, int64_t size, int64_t num_times)
        : next((const char*)from), end(next + size), pace(ratio_up(size, LINE), num_times) {}

    template <bool IS_WRITTEN, int LEVEL>
    __attribute__((always_inline)) inline void fetch() {
        pace.go_on([&]() __attribute__((always_inline)) {
            if (next < end) __builtin_prefetch(next, IS_WRITTEN, 4 - LEVEL);
            next += LINE;
        });
    }
};

// Puts a block's product to y, row by row. Gates are kept for the values that they multiply.
class Putting {
    enum Kind { PLAIN, GATES, GATED };

    const Linear& l;
    Column column;
    Kind kind = PLAIN;
    __m512i* gates = nullptr;
    const float* sums = nullptr;
    char* y = nullptr;
    int64_t left = 0;
    Pace pace;

    __attribute__((always_inline)) inline void put() {
        if (kind == PLAIN)
            column.put(sums, (uint16_t*)y);
        else if (kind == GATES)
            *gates = column.gates(l.act, sums);
        else
            _mm512_storeu_si512(y, column.gated(*gates, sums));
        gates++;
        sums += PANEL;
        y += l.to.row;
        left--;
    }

   public:
    explicit Putting(const Linear& l) : l(l), column(l.weights, 0) {}

    void begin(const Stretch& s, int64_t block, Space& space) {
        const int64_t own = block * BLOCK_ROWS, row = s.first_row + own;
        kind = !l.num_couples ? PLAIN : s.panel < l.num_couples ? GATES : GATED;
        column = Column(l.weights, s.panel);
        gates = space.gates + own;
        sums = space.complete[0];
        y = l.to.place(row, (s.panel - (kind == GATED ? l.num_couples : 0)) * PANEL);
        left = smaller(BLOCK_ROWS, s.end_row - row);
        pace = Pace(left, s.count());
    }

    __attribute__((always_inline)) inline void go_on() {
        pace.go_on([&]() __attribute__((always_inline)) {
            if (left) put();
        });
    }

    void finish() {
        while (left) put();
    }
};

class Worker {
    const Linear& l;
    const Weights& weights;
    Space& space;
    Tiles tiles;
    Putting putting;
    int64_t copied_row = -1;  // the first row of those that were copied

    // Adds the products of a block's chunk, and does between them what else is to be done. With
    // IS_NEAR the weights stay in the first-level cache.
    template <bool HAS_LOWER, bool IS_NEAR>
    __attribute__((always_inline)) inline void add(const RowChunk& x, const Chunk& w, Lines& lines,
                                                   Lines& sums) {
        settle();
        _tile_stream_loadd(4, x.rows[0], LINE);
        QUIRE_LOAD_TILE(6, w.pairs[0], LINE, !IS_NEAR);
        QUIRE_LOAD_TILE(7, w.pairs[1], LINE, !IS_NEAR);
        _tile_dpbf16ps(0, 4, 6);
        lines.fetch<false, 2>();
        if (HAS_LOWER) _tile_stream_loadd(5, x.rows[TILE_ROWS], LINE);
        _tile_dpbf16ps(1, 4, 7);
        sums.fetch<true, 1>();
        putting.go_on();
        if (HAS_LOWER) _tile_dpbf16ps(2, 5, 6);
        lines.fetch<false, 2>();
        if (HAS_LOWER) _tile_dpbf16ps(3, 5, 7);
    }

    __attribute__((always_inline)) inline void decode_one(const Stretch& s, Cursor& cursor,
                                                          int64_t i) {
        settle();
        decode<false>(weights, cursor, (s.begin + i) * CHUNK, space.chunks[i]);
    }

    Cursor cursor(const Stretch& s) const { return weights.panel(s.panel, s.begin * CHUNK_STEPS); }

    template <bool HAS_LOWER, bool IS_LAST, bool IS_NEAR>
    __attribute__((always_inline)) inline void add(const RowChunk* x, int64_t begin, int64_t end,
                                                   const Stretch& next, Cursor& at, Lines& lines,
                                                   Lines& sums) {
        for (int64_t i = begin; i < end; i++) {
            add<HAS_LOWER, IS_NEAR>(x[i], space.chunks[i], lines, sums);
            if (IS_LAST && i < next.count()) decode_one(next, at, i);
        }
    }

    // Multiplies a block by a stretch. This is a function of its own so that what its loops take is
    // in registers.
    template <bool HAS_LOWER, bool IS_LAST>
    __attribute__((noinline)) void add(const Stretch& s, int64_t block, const Stretch& next,
                                       Lines& lines) {
        const int64_t count = s.count(), near = smaller(NEAR_CHUNKS, count);
        const RowChunk* x = rows(s, block);
        Sums& sums = space.sums[s.own * s.num_blocks() + block];
        Lines ahead = lines, sums_ahead;
        if (l.num_parts > 1) sums_ahead = Lines(&sums + 1, sizeof sums, count);
        Cursor at = IS_LAST ? cursor(next) : weights.panel(0, 0);
        s.begin ? load_sums<HAS_LOWER, true>(sums, PANEL) : clear_sums();
        add<HAS_LOWER, IS_LAST, true>(x, 0, near, next, at, ahead, sums_ahead);
        add<HAS_LOWER, IS_LAST, false>(x, near, count, next, at, ahead, sums_ahead);
        for (int64_t i = count; IS_LAST && i < next.count(); i++) decode_one(next, at, i);
        lines = ahead;
        if (s.end < num_chunks(weights)) return store_sums<HAS_LOWER>(sums, PANEL);
        putting.finish();
        store_sums<HAS_LOWER>(space.complete, PANEL);
        putting.begin(s, block, space);
    }

    const RowChunk* rows(const Stretch& s, int64_t block) const {
        if (l.num_parts == 1) return &space.rows[block * s.count()];
        return (const RowChunk*)l.from.place(s.first_row + block * BLOCK_ROWS, s.begin * CHUNK);
    }

    // Copies the rows of a stretch, unless they are there.
    void copy(const Stretch& s) {
        if (s.first_row == copied_row) return;
        copied_row = s.first_row;
        for (int64_t row = s.first_row, i = 0; row < s.end_row; row += BLOCK_ROWS, i += s.count())
            arrange(l.from, row, smaller(row + BLOCK_ROWS, s.end_row), weights.num_columns,
                    &space.rows[i]);
    }

   public:
    Worker(const Linear& l, Space& space)
        : l(l), weights(l.weights), space(space), putting(l) {}

    // Decodes a whole stretch, before the first one is multiplied.
    void decode_all(const Stretch& s) {
        Cursor at = cursor(s);
        for (int64_t i = 0; i < s.count(); i++) decode_one(s, at, i);
    }

    // Multiplies a stretch, and decodes `next`, which comes after it, meanwhile.
    void multiply(const Stretch& s, const Stretch& next) {
        if (l.num_parts == 1) copy(s);
        const int64_t last = s.num_blocks() - 1;
        Lines lines(cursor(next).at, next.count() * CHUNK_STEPS * CODED_BYTES,
                    2 * s.count() * s.num_blocks());
        for (int64_t i = 0; i <= last; i++) {
            const int64_t num_rows = smaller(BLOCK_ROWS, s.end_row - s.first_row - i * BLOCK_ROWS);
            tiles.shape(num_rows);
            if (num_rows > TILE_ROWS)
                i < last ? add<true, false>(s, i, next, lines) : add<true, true>(s, i, next, lines);
            else
                add<false, true>(s, i, next, lines);
        }
    }

    void finish() { putting.finish(); }
};

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    Space space;
    Worker worker(l, space);
    Way way(l, l.ranges);
    Stretch s = way.next();
    worker.decode_all(s);
    while (s.end) {
        const Stretch next = way.next();
        worker.multiply(s, next);
        s = next;
    }
    worker.finish();
}

struct Arranging {
    Matrix from, to;
    int64_t num_rows, num_columns;
    Ranges ranges;  // ranges of blocks
};

void do_blocks(void* argument) {
    Arranging& a = *(Arranging*)argument;
    do_share(a.ranges, ratio_up(a.num_rows, BLOCK_ROWS), [&](int64_t block) {
        const int64_t row = block * BLOCK_ROWS;
        arrange(a.from, row, smaller(row + BLOCK_ROWS, a.num_rows), a.num_columns,
                (RowChunk*)a.to.place(row, 0));
    });
}

// Returns x in the order in which it is multiplied.
inline Matrix rows_of(const LinearProduct& product, int64_t num_threads) {
    const int64_t width = product.weights.num_columns;
    const Matrix given = dense(product.x, width);
    if (!has_parts(width)) return given;
    const int64_t most = smaller(num_threads, MAX_RANGES);
    Arranging a{given, arranged(product.scratch, width), product.num_rows, width,
                Ranges(smaller(most, ratio_up(product.num_rows, BLOCK_ROWS)))};
    in_parallel(a.ranges.count, do_blocks, &a);
    return a.to;
}

inline void multiply_rows(const LinearProduct& product, const Matrix& from, const Matrix& to,
                          int64_t num_threads) {
    Linear l(product, from, to, num_threads);
    in_parallel(smaller(num_threads, l.num_tasks()), do_tasks, &l);
}

// Multiplies more than MAX_PANEL_ROWS rows of x, which are shared out too where there are few
// panels.
inline void multiply_many(const LinearProduct& product, int64_t num_threads) {
    multiply_rows(product, rows_of(product, num_threads), dense(product.y, product.width()),
                  num_threads);
}

// Multiplies by gates and values, and what comes of it by `down`; it lies between the two in the
// order of tiles.
inline void multiply_many(const LinearProduct& gates, const LinearProduct& down,
                          int64_t num_threads) {
    const Matrix between = arranged(gates.y, gates.width());
    multiply_rows(gates, rows_of(gates, num_threads), between, num_threads);
    multiply_rows(down, between, dense(down.y, down.width()), num_threads);
}

// Returns the bytes of scratch memory.
inline int64_t arranged_bytes(int64_t num_rows, int64_t num_columns) {
    if (num_rows <= MAX_PANEL_ROWS || !has_parts(num_columns)) return 0;
    return ratio_up(num_rows, BLOCK_ROWS) * ratio_up(num_columns, CHUNK) * sizeof(RowChunk);
}

}  // namespace
