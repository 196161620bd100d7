// A task of attention: some rows go through the tiles of keys that they see.
//
// What is computed of a row depends on its query and what it sees alone, bit for bit: scores are the
// same partial sums, weights and sums go through tiles from multiples of TILE on, and through the
// same tree of leaves (plan.h), be it packed or direct, and however chunks and tasks are cut.
#pragma once

#include "attention/ahead.h"
#include "attention/direct.h"
#include "attention/reading.h"
#include "attention/tile_scores.h"

namespace {

constexpr int64_t FETCHES = TILE / 2 + 12;  // while few rows of a head attend to a tile: about as many

template <class Way, class Stored>
struct Worker {
    const Call& call;
    const Task& task;
    const Sizes sizes;
    const Slope slope;
    Memory memory;
    typename Way::Registers& registers;
    Next next;
    int64_t depth;  // branches that are open

    // Where few rows attend to a tile:
    const Stored* const* head_keys;
    Ahead keys_ahead, values_ahead;
    int64_t fetched_at_once;  // lines

    int64_t rows_of_head() const { return task.num_queries * call.group(); }

    // Whether keys are multiplied where they lie: to pack them pays for more rows.
    bool has_few_rows() const {
#if QUIRE_HAS_TILES
        return Way::IS_SHAPED && rows_of_head() <= TILE_ROWS;
#else
        return false;
#endif
    }

    // The j-th of those that share the task's `head`.
    const Stored* query_of(int64_t head, int64_t i, int64_t j) const {
        return (const Stored*)call.query + (task.row + i) * call.query_token_stride +
               ((task.head + head) * call.group() + j) * call.query_head_stride;
    }

    void take_queries() {
        for (int64_t head = 0; head < task.num_heads; head++)
            for (int64_t i = 0; i < task.num_queries; i++)
                for (int64_t j = 0; j < call.group(); j++) {
                    int64_t row = head * rows_of_head() + i * call.group() + j;
                    take_query(query_of(head, i, j), memory.queries + row * sizes.depth);
                }
        if (has_few_rows())
            for (int64_t head = 0; head < task.num_heads; head++) lay_side_by_side(head);
    }

    // Turns a head's queries from [rows, depth] to [depth, rows].
    void lay_side_by_side(int64_t head) {
        const int64_t rows = rows_of_head();
        uint32_t *queries = memory.queries + head * rows * sizes.depth, *copy = memory.keys;
        memcpy(copy, queries, size_t(rows * sizes.depth) * 4);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < sizes.depth; i++)
                queries[i * rows + row] = copy[row * sizes.depth + i];
    }

    void forget() {
        memory.use(depth);
        for (int64_t row = 0; row < task.num_heads * rows_of_head(); row++)
            memory.running[row] = {-INFINITE, 0};
        const int64_t slots = call.is_direct(task.seq) ? SPREAD : 1;
        memset(memory.totals, 0, size_t(task.num_heads * rows_of_head() * slots * LANES) * 4);
        memset(memory.sums, 0, size_t(task.num_heads * rows_of_head() * sizes.values) * 4);
    }

    void take_query(const Stored* from, uint32_t* to) {
        memset(to, 0, size_t(sizes.depth) * 4);
        if (Way::PER_ELEMENT == 2)
            memcpy(to, from, size_t(call.head_size) * sizeof(Stored));
        else
            for (int64_t i = 0; i < call.head_size; i++) ((float*)to)[i] = to_float(from[i]);
    }

    // `following`: the task whose first tile is fetched during this one's last; null: none.
    void attend(const Task* following) {
        Places places[2];
        Found<Stored> found;
        bool is_direct = call.is_direct(task.seq);
        is_direct ? take_pieces() : take_queries();
        int64_t at = task.first - task.first % TILE;
        find(call, task, at, places[0]);
        forget();
        for (int64_t turn = 0; at < task.end; at += TILE, turn ^= 1) {
            Places &here = places[turn], &ahead = places[turn ^ 1];
            if (at + TILE < task.end) find(call, task, at + TILE, ahead);
            else if (following) find(call, *following, following->first / TILE * TILE, ahead);
            else ahead = here;
            read(call, task, memory, here, smaller(TILE, task.end - at), found);
            is_direct ? attend_directly(found, ahead, at) : attend_packed(found, ahead, at);
            if ((at + TILE) % LEAF && at + TILE < task.end) continue;
            is_direct ? sum_up_pieces() : sum_up();
            close(at / LEAF);
            if (at + TILE < task.end) forget();
        }
        close_all();
    }

    // Closes a branch of the tree: the one at `place` among those of its length.
    void close(int64_t place) {
        for (; depth > 0 && place % 2; place /= 2) add_level();
        depth++;
    }

    void close_all() {
        for (depth--; depth > 0;) add_level();
        memory.use(0);
        depth = 0;
    }

    // Adds the last level to the one before it.
    void add_level() {
        add(memory.levels[depth - 1], memory.levels[depth]);
        depth--;
    }

    // From what `weigh` keeps of the rows to what all tasks do.
    void sum_up() {
        for (int64_t row = 0; row < task.num_heads * rows_of_head(); row++) {
            Running& running = memory.running[row];
            running = {running.top * (slope.slope / TO_POWER),
                       total(load(memory.totals + row * LANES))};
        }
    }

    // While few rows attend, lines are fetched evenly, those of keys before those of values: a core
    // waits for few at once, and computes meanwhile only if it need not wait to ask for one.
    void start_to_fetch(const Places& places) {
        const int64_t size = call.kept_bytes() * task.num_heads;
        keys_ahead = {places.keys, TILE, call.head_size * size, 0};
        values_ahead = {places.values, call.values ? TILE : 0, call.v_head_size * size, 0};
        const int64_t num_lines = TILE * (ratio_up(keys_ahead.row_bytes, LINE) +
                                          ratio_up(values_ahead.row_bytes, LINE));
        fetched_at_once = ratio_up(num_lines, task.num_heads * FETCHES);
    }

    void fetch_lines() { (keys_ahead.num_rows ? keys_ahead : values_ahead).fetch(fetched_at_once); }

    void attend_packed(Found<Stored>& here, const Places& ahead, int64_t at) {
        int64_t count = smaller(TILE, task.end - at);
        next = {ahead.keys, ahead.values, TILE, task.num_heads * call.head_size * call.kept_bytes(),
                call.values ? task.num_heads * call.v_head_size * call.kept_bytes() : 0,
                TILE * Way::MAX_ROWS / (task.num_heads * rows_of_head()) + 1, 0};
        const bool is_few = has_few_rows();
        if (is_few) start_to_fetch(ahead);
        head_keys = here.keys;
        for (int64_t head = 0; head < task.num_heads; head++) {
            if (!is_few) pack_keys<Way>(here.keys, count, call.head_size, memory.keys);
            pack_values(here.values, count, call.v_head_size, memory.values, sizes.values, Way(),
                        [&] { if (is_few) fetch_lines(); });
            attend_head(head, at);
            for (int64_t i = 0; i < TILE; i++) {
                here.keys[i] += call.head_size;
                here.values[i] += call.values ? call.v_head_size : call.head_size;
            }
        }
    }

#if QUIRE_HAS_BF16_DOT
    Piece piece_of(int64_t head, int64_t query, int64_t index) const {
        int64_t begin = call.group() * index / call.num_pieces();
        int64_t end = call.group() * (index + 1) / call.num_pieces();
        int64_t row = head * rows_of_head() + query * call.group() + begin;
        float* queries = (float*)memory.queries + row * SPREAD * round_up(sizes.depth, LANES);
        return {queries, memory.running + row, memory.totals + row * SPREAD * LANES,
                memory.sums + row * sizes.values, end - begin, sizes.values};
    }

    template <class Act>
    void each_piece(Act act) {
        for (int64_t head = 0; head < task.num_heads; head++)
            for (int64_t i = 0; i < task.num_queries; i++)
                for (int64_t j = 0, row = 0; j < call.num_pieces(); j++) {
                    Piece piece = piece_of(head, i, j);
                    act(piece, query_of(head, i, row));
                    row += piece.num_rows;
                }
    }

    void take_pieces() {
        memory.use(0);
        each_piece([&](const Piece& piece, const Stored* query) {
            for (int64_t row = 0; row < piece.num_rows; row++) {
                take_query(query + row * call.query_head_stride, memory.keys);
                spread(memory.keys, sizes.depth, row, piece);
            }
        });
    }

    void sum_up_pieces() {
        each_piece([&](const Piece& piece, const Stored*) { ::sum_up(piece, slope); });
    }

    void attend_directly(const Found<Stored>& here, const Places& ahead, int64_t at) {
        int64_t size = call.kept_bytes();
        int64_t value_width = call.values ? call.v_head_size : call.head_size;
        Ahead keys{ahead.keys, TILE, task.num_heads * call.head_size * size, 0};
        Ahead values{ahead.values, call.values ? TILE : 0, task.num_heads * call.v_head_size * size, 0};
        for (int64_t head = 0; head < task.num_heads; head++) {
            for (int64_t i = 0; i < task.num_queries; i++) {
                int64_t position = task.position + i;
                Seen seen{larger(larger(call.first_seen(position), task.first) - at, 0),
                          smaller(smaller(position + 1, task.end) - at, TILE)};
                if (seen.first >= seen.end) continue;
                DirectTile<Stored> tile{{here.keys, head * call.head_size, call.head_size, &keys},
                                        {here.values, head * value_width, call.v_head_size, &values},
                                        seen};
                for (int64_t j = 0; j < call.num_pieces(); j++)
                    attend_rows_directly<Way>(call, tile, slope, piece_of(head, i, j));
            }
        }
        keys.fetch_rest();
        values.fetch_rest();
    }
#else
    void take_pieces() {}
    void sum_up_pieces() {}
    void attend_directly(const Found<Stored>&, const Places&, int64_t) {}
#endif

    void attend_head(int64_t head, int64_t at) {
        int64_t rows = rows_of_head(), pieces = ratio_up(rows, Way::MAX_ROWS);
        bool is_whole = seen_by(0, at).end == TILE && seen_by(rows - 1, at).first == 0;
        for (int64_t piece = 0, begin = 0; piece < pieces; piece++) {
            int64_t end = Way::IS_SHAPED ? smaller(begin + Way::MAX_ROWS, rows)
                                         : rows * (piece + 1) / pieces;
            if (is_whole) attend_rows(head, begin, end - begin);
            else attend_some(head, begin, end - begin, at);
            begin = end;
        }
    }

    // What the rows from `begin` on see of the tile at `at`, each row by itself.
    Seen seen_by(int64_t begin, int64_t at) const {
        int64_t position = task.position + begin / call.group();
        return {larger(larger(call.first_seen(position), task.first) - at, 0),
                smaller(smaller(position + 1, task.end) - at, TILE)};
    }

    Row row_of(int64_t row) const {
        return {&memory.running[row].top, memory.totals + row * LANES,
                memory.sums + row * sizes.values, sizes.values};
    }

    void score(int64_t row, int64_t num_rows, int64_t columns, float* products) {
        if (has_few_rows()) score_few_rows(row, num_rows, columns, products, Way());
        else multiply_split({memory.queries + row * sizes.depth, sizes.depth, memory.keys, TILE,
                        sizes.depth, products, TILE, false},
                       num_rows, columns, call.split(), registers);
        if (!has_few_rows()) next.fetch_some();
        if (call.logit_cap != 0) cap(products, num_rows * TILE, call.logit_scale, call.logit_cap);
    }

    template <class AnyWay>
    void score_few_rows(int64_t, int64_t, int64_t, float*, AnyWay) {}

#if QUIRE_HAS_TILES
    void score_few_rows(int64_t row, int64_t num_rows, int64_t columns, float* products, TileDot) {
        const FewQueries queries{memory.queries + row * sizes.depth, sizes.depth, call.head_size,
                                 num_rows};
        score_in_place(head_keys, columns, queries, (bf16*)memory.keys, registers,
                       [this] { fetch_lines(); }, products);
    }
#endif

    void add_values(const uint32_t* weights, int64_t row, int64_t num_rows, int64_t num_keys) {
        multiply({weights, TILE / Way::PER_ELEMENT, memory.values, sizes.values,
                  num_keys / Way::PER_ELEMENT, memory.sums + row * sizes.values, sizes.values,
                  true},
                 num_rows, sizes.values, registers);
    }

    // Rows that see the whole tile.
    void attend_rows(int64_t head, int64_t begin, int64_t num_rows) {
        alignas(64) float products[Way::MAX_ROWS * TILE];
        alignas(64) uint32_t weights[Way::MAX_ROWS * TILE / Way::PER_ELEMENT];
        int64_t row = head * rows_of_head() + begin;
        score(row, num_rows, TILE, products);
        for (int64_t i = 0; i < num_rows; i++) {
            if (has_few_rows()) fetch_lines();
            weigh<false>(products + i * TILE, TILE, {0, TILE}, slope, row_of(row + i),
                         weights + i * TILE / Way::PER_ELEMENT, Way());
        }
        add_values(weights, row, num_rows, TILE);
    }

    void attend_some(int64_t head, int64_t begin, int64_t num_rows, int64_t at) {
        alignas(64) float products[Way::MAX_ROWS * TILE];
        alignas(64) uint32_t weights[Way::MAX_ROWS * TILE / Way::PER_ELEMENT];
        int64_t row = head * rows_of_head() + begin;
        Seen last = seen_by(begin + num_rows - 1, at);
        if (last.end <= 0 || seen_by(begin, at).first >= TILE) return;
        int64_t columns = round_up(last.end, Way::COLUMNS);
        score(row, num_rows, columns, products);
        for (int64_t i = 0; i < num_rows; i++) {
            uint32_t* own = weights + i * TILE / Way::PER_ELEMENT;
            Seen seen = seen_by(begin + i, at);
            if (seen.first < seen.end)
                weigh<true>(products + i * TILE, round_up(columns, 2 * LANES), seen, slope,
                            row_of(row + i), own, Way());
            else
                memset(own, 0, size_t(columns / Way::PER_ELEMENT) * 4);
        }
        add_values(weights, row, num_rows, columns);
    }

    int64_t num_rows() const { return task.num_heads * rows_of_head(); }

    void copy(Part from, Part to) const {
        memcpy(to.running, from.running, size_t(num_rows()) * sizeof(Running));
        memcpy(to.sums, from.sums, size_t(num_rows() * sizes.values) * 4);
    }

    void keep(int64_t part) const { copy(memory.levels[0], call.part(part, sizes)); }

    // Adds up the parts of a task, of which this is one.
    void add_parts() {
        depth = 0;
        for (int64_t part = 0; part < task.num_parts; part++) {
            copy(call.part(task.first_part + part, sizes), memory.levels[depth]);
            close(task.place - task.part + part);
        }
        close_all();
    }

    // Where one has seen no key the other stays as it is.
    void add(Part mine, Part other) const {
        for (int64_t row = 0; row < num_rows(); row++) {
            Running &a = mine.running[row], &b = other.running[row];
            float top = a.top > b.top ? a.top : b.top;
            if (top == -INFINITE) continue;
            float here = exponential(splat(a.top - top))[0];
            float there = exponential(splat(b.top - top))[0];
            a = {top, a.total * here + b.total * there};
            float* sums = mine.sums + row * sizes.values;
            const float* others = other.sums + row * sizes.values;
            for (int64_t i = 0; i < sizes.values; i += LANES)
                store(sums + i, load(sums + i) * here + load(others + i) * there);
        }
    }

    void finish() {
        for (int64_t head = 0; head < task.num_heads; head++)
            for (int64_t i = 0; i < rows_of_head(); i++) {
                int64_t row = head * rows_of_head() + i;
                int64_t token = task.row + i / call.group();
                int64_t from = (task.head + head) * call.group() + i % call.group();
                Running running = memory.running[row];
                if (call.sinks) {
                    float sink = call.sinks[from] - running.top;
                    running.total += exponential(splat(sink < 88 ? sink : 88))[0];
                }
                float share = 1 / running.total;
                const float* sums = memory.sums + row * sizes.values;
                Stored* out = (Stored*)call.out + (token * call.heads + from) * call.v_head_size;
                int64_t j = 0;
                for (; j + LANES <= call.v_head_size; j += LANES)
                    store_as(out + j, load(sums + j) * share);
                for (; j < call.v_head_size; j++) store_as(out + j, sums[j] * share);
            }
    }
};

}  // namespace
