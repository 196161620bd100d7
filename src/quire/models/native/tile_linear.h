// y = x W^T + bias for many rows of x, by tiles.
//
// A task is some rows of x by some panels. It goes through a panel's columns at once, or if there are
// too many part by part, all panels by each: a stretch. While a stretch is multiplied by the first of
// the blocks of rows it is decoded; meanwhile the next one is fetched, and at no other time: lines for
// later would push out what is in use. What a block's product has become is put to y while the next is
// made.
//
// Blocks lie in the second-level cache and are loaded past the first, which weights fill. They come
// slower from lines that another core has as well: where all their columns fit, or end within a chunk,
// a thread copies them, into the order in which tiles take them.
#pragma once

#include "panels.h"
#include "ranges.h"

namespace {

constexpr int64_t MAX_CHUNKS = 32;   // of a stretch
constexpr int64_t PART_CHUNKS = 16;  // of one of several
constexpr int64_t NEAR_CHUNKS = 20;  // as many stay in the first-level cache
constexpr int64_t MAX_TASK_ROWS = 512;
constexpr int64_t MAX_TASK_BLOCKS = MAX_TASK_ROWS / BLOCK_ROWS;
constexpr int64_t MAX_TASK_PANELS = 8;
// Of a row of x, from which on rows crowd the same few places of the cache: fewer rows then.
constexpr int64_t CROWDING_BYTES = 4096;

struct Linear : LinearProduct {
    Ranges ranges;                  // of units
    int64_t task_rows, num_blocks;  // a task's rows of x, and how many such there are
    int64_t task_units, num_parts;  // of a task at most; of the columns
    bool is_copied;                 // x, by each thread

    Linear(const LinearProduct& product, int64_t num_threads)
        : LinearProduct(product),
          ranges(smaller(num_units(), smaller(num_threads, MAX_RANGES))) {
        const int64_t count = num_chunks(weights);
        const int64_t shared = smaller(ratio_up(num_threads, num_units()),
                                       ratio_up(num_rows, BLOCK_ROWS));  // where panels are few
        num_parts = count <= MAX_CHUNKS ? 1 : ratio_up(count, PART_CHUNKS);
        is_copied = num_parts == 1 || weights.num_columns % CHUNK;
        const bool is_crowded = !is_copied && weights.num_columns * 2 % CROWDING_BYTES == 0;
        const int64_t least = larger(ratio_up(num_rows, MAX_TASK_ROWS >> is_crowded), shared);
        task_rows = round_up(ratio_up(num_rows, least), BLOCK_ROWS);
        num_blocks = ratio_up(num_rows, task_rows);
        task_units = num_parts == 1 ? 1 : MAX_TASK_PANELS / unit();
    }

    int64_t unit() const { return num_couples ? 2 : 1; }  // panels that stay together
    int64_t num_units() const { return weights.num_panels() / unit(); }
    int64_t num_tasks() const { return num_blocks * ratio_up(num_units(), task_units); }
};

// A block's rows of x in a chunk, zeros beyond the last column.
struct alignas(LINE) RowChunk {
    uint16_t rows[BLOCK_ROWS][CHUNK];
};

// A thread's own.
struct alignas(LINE) Space {
    Chunk chunks[MAX_CHUNKS];
    Sums complete;
    __m512i gates[MAX_TASK_ROWS];  // rows of a panel
    union {
        RowChunk all[MAX_TASK_BLOCKS * MAX_CHUNKS];
        struct {
            RowChunk rows[MAX_TASK_BLOCKS * PART_CHUNKS];
            Sums sums[MAX_TASK_PANELS][MAX_TASK_BLOCKS];
        } part;
    };
};

// Chunks of a panel, the `own`th of a task, by its rows. There is none if it has no end.
struct Stretch {
    int64_t first_row, end_row, panel, own, begin, end;

    int64_t count() const { return end - begin; }
    int64_t num_blocks() const { return ratio_up(end_row - first_row, BLOCK_ROWS); }
    int64_t num_adds() const { return count() * num_blocks(); }
};

// A worker's way through all of its stretches.
class Way {
    const Linear& l;
    Claims claims;
    int64_t first_row = 0, end_row = 0;
    int64_t from = 0, count = 0;  // panels, in an order in which couples stand together
    int64_t at = 0;               // stretches that are behind

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

// Lines of a stretch that comes next, some of them each time.
struct Lines {
    const uint8_t *next = nullptr, *end = nullptr;
    int64_t num_bytes = 0;

    Lines(const Weights& weights, const Stretch& s, int64_t num_times) {
        if (!s.end) return;
        next = weights.panel(s.panel, s.begin * CHUNK_STEPS).at;
        end = next + s.count() * CHUNK_STEPS * CODED_BYTES;
        num_bytes = round_up(ratio_up(end - next, num_times), LINE);
    }

    __attribute__((always_inline)) inline void fetch() {
        if (next >= end) return;
        for (int64_t i = 0; i < num_bytes; i += LINE) __builtin_prefetch(next + i, 0, 2);
        next += num_bytes;
    }
};

// A block's product on its way to y, some rows of it each time. Gates are kept for what they let
// through, which goes around the caches: lines of it that another core read have to be taken from
// it before they can be written.
class Putting {
    enum Kind { PLAIN, GATES, GATED };

    const Linear& l;
    Column column;
    Kind kind = PLAIN;
    __m512i* gates = nullptr;
    const float* sums = nullptr;
    uint16_t* y = nullptr;
    int64_t left = 0, num_rows = 0;

    __attribute__((always_inline)) inline void put() {
        if (kind == PLAIN) {
            column.put(sums, y);
        } else if (kind == GATES) {
            *gates = column.gates(l.act, sums);
        } else {
            const __m512i row = column.gated(*gates, sums);
            if (uint64_t(y) % LINE == 0)
                _mm512_stream_si512((__m512i*)y, row);
            else
                _mm512_storeu_si512(y, row);
        }
        gates++;
        sums += PANEL;
        y += l.width();
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
        y = l.y + row * l.width() + (s.panel - (kind == GATED ? l.num_couples : 0)) * PANEL;
        left = smaller(BLOCK_ROWS, s.end_row - row);
        num_rows = ratio_up(left, s.count());
    }

    __attribute__((always_inline)) inline void go_on() {
        for (int64_t i = smaller(num_rows, left); i > 0; i--) put();
    }

    void finish() {
        while (left) put();
    }
};

// A block of x from some column on: a chunk's rows `stride` apart, chunks `step`.
struct RowsAt {
    const char* at;
    int64_t stride, step;
};

class Worker {
    const Linear& l;
    const Weights& weights;
    Space& space;
    Tiles tiles;
    Putting putting;
    int64_t copied_row = -1, copied_chunk = -1;  // the first ones

    // IS_NEAR: the first-level cache has room for the weights.
    template <bool HAS_LOWER, bool IS_NEAR>
    __attribute__((always_inline)) static inline void add(const RowsAt& x, const Chunk& w) {
        settle();
        if (IS_NEAR)
            _tile_loadd(6, w.pairs[0], LINE);
        else
            _tile_stream_loadd(6, w.pairs[0], LINE);
        _tile_stream_loadd(4, x.at, x.stride);
        if (IS_NEAR)
            _tile_loadd(7, w.pairs[1], LINE);
        else
            _tile_stream_loadd(7, w.pairs[1], LINE);
        _tile_dpbf16ps(0, 4, 6);
        if (HAS_LOWER) _tile_stream_loadd(5, x.at + TILE_ROWS * x.stride, x.stride);
        _tile_dpbf16ps(1, 4, 7);
        if (!HAS_LOWER) return;
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }

    template <bool HAS_LOWER, bool IS_FIRST, bool IS_NEAR>
    __attribute__((always_inline)) inline void add(RowsAt& x, Cursor& cursor, int64_t first,
                                                   int64_t begin, int64_t end, Lines& lines) {
        for (int64_t i = begin; i < end; i++, x.at += x.step) {
            Chunk& chunk = space.chunks[i - first];
            if (IS_FIRST) decode<false>(weights, cursor, i * CHUNK, chunk);
            lines.fetch();
            putting.go_on();
            add<HAS_LOWER, IS_NEAR>(x, chunk);
        }
    }

    // A block by a stretch. Its own function, so that what its loops take is in registers.
    template <bool HAS_LOWER, bool IS_FIRST>
    __attribute__((noinline)) void add(const Stretch& s, int64_t block, Lines& lines) {
        const int64_t near = smaller(s.begin + NEAR_CHUNKS, s.end);
        Sums& sums = space.part.sums[s.own][block];
        RowsAt x = rows(s, block);
        Cursor cursor = weights.panel(IS_FIRST ? s.panel : 0, IS_FIRST ? s.begin * CHUNK_STEPS : 0);
        Lines ahead = lines;
        s.begin ? load_sums<HAS_LOWER>(sums, PANEL) : clear_sums();
        add<HAS_LOWER, IS_FIRST, true>(x, cursor, s.begin, s.begin, near, ahead);
        add<HAS_LOWER, IS_FIRST, false>(x, cursor, s.begin, near, s.end, ahead);
        lines = ahead;
        if (s.end < num_chunks(weights)) return store_sums<HAS_LOWER>(sums, PANEL);
        putting.finish();
        store_sums<HAS_LOWER>(space.complete, PANEL);
        putting.begin(s, block, space);
    }

    RowsAt rows(const Stretch& s, int64_t block) const {
        const int64_t k = weights.num_columns, row = s.first_row + block * BLOCK_ROWS;
        if (l.is_copied)
            return {(const char*)&space.all[block * s.count()], LINE, sizeof(RowChunk)};
        return {(const char*)(l.x + row * k + s.begin * CHUNK), k * 2, LINE};
    }

    // The rows of a stretch, unless they are there.
    void copy(const Stretch& s) {
        if (s.first_row == copied_row && s.begin == copied_chunk) return;
        copied_row = s.first_row;
        copied_chunk = s.begin;
        for (int64_t row = s.first_row; row < s.end_row; row++) {
            const int64_t own = row - s.first_row, place = own / BLOCK_ROWS * s.count();
            for (int64_t i = s.begin; i < s.end; i++) {
                const int64_t column = i * CHUNK, left = weights.num_columns - column;
                const __mmask32 is_there = left < CHUNK ? (1u << left) - 1 : ~0u;
                _mm512_store_si512(
                    space.all[place + i - s.begin].rows[own % BLOCK_ROWS],
                    _mm512_maskz_loadu_epi16(is_there, l.x + row * weights.num_columns + column));
            }
        }
    }

   public:
    Worker(const Linear& l, Space& space)
        : l(l), weights(l.weights), space(space), putting(l) {}

    // `next`: comes after it.
    void multiply(const Stretch& s, const Stretch& next) {
        Lines lines(weights, next, s.num_adds());
        if (l.is_copied) copy(s);
        for (int64_t i = 0; i < s.num_blocks(); i++) {
            const int64_t num_rows = smaller(BLOCK_ROWS, s.end_row - s.first_row - i * BLOCK_ROWS);
            tiles.shape(num_rows);
            if (num_rows > TILE_ROWS)
                i ? add<true, false>(s, i, lines) : add<true, true>(s, i, lines);
            else
                i ? add<false, false>(s, i, lines) : add<false, true>(s, i, lines);
        }
    }

    // What went around the caches is there for all.
    void finish() {
        putting.finish();
        _mm_sfence();
    }
};

void do_tasks(void* argument) {
    Linear& l = *(Linear*)argument;
    Space space;
    Worker worker(l, space);
    Way way(l, l.ranges);
    Stretch s = way.next();
    while (s.end) {
        const Stretch next = way.next();
        worker.multiply(s, next);
        s = next;
    }
    worker.finish();
}

// More than MAX_PANEL_ROWS rows of x, which are shared out too where there are few panels.
inline void multiply_many(const LinearProduct& product, int64_t num_threads) {
    Linear l(product, num_threads);
    in_parallel(smaller(num_threads, l.num_tasks()), do_tasks, &l);
}

}  // namespace
