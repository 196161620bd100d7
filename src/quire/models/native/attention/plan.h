// A call of attention, how it is cut into tasks, and where its scratch lies.
#pragma once

#include "attention/numbers.h"
#include "attention/weights.h"

namespace {

constexpr int64_t MOST_SLOTS = 8;
constexpr int64_t MAX_DIRECT_GROUP = 16;
constexpr int64_t MIN_TILED_GROUP = 3;
constexpr int64_t MAX_DIRECT_QUERIES = 8;  // mostly as many as are drafted
constexpr int64_t MAX_DIRECT_ROWS = 64;    // an eighth of a task's at most: their queries are spread
constexpr int64_t SPREAD = 4;              // times what a query takes

struct Sizes {
    int64_t depth;   // elements of a packed key
    int64_t values;  // elements of a packed value, floats of a row's sum: a multiple of LANES
};

struct Part {
    Running* running;
    float* sums;
};

// A call, and what lay_out adds to it.
struct Call : AttentionCall {
    float logit_scale, logit_cap;
    char* parts;
    int64_t part_bytes, max_rows, group_size, num_levels;
    int64_t* finished;

    int64_t group() const { return group_size; }  // query heads of a K/V head
    int64_t element_bytes() const { return is_bf16 ? 2 : 4; }
    int64_t kept_bytes() const { return number == AS_COMPUTED ? element_bytes() : 1; }

    int64_t first_seen(int64_t position) const {
        if (window_size) return larger(position + 1 - window_size, 0);
        return chunk_size ? position - position % chunk_size : 0;
    }

    int64_t num_new(int64_t seq) const { return query_starts[seq + 1] - query_starts[seq]; }

    // Returns how many new tokens a sequence may have at most for vectors to read its K and V in
    // place. They give a row the numbers that it gets where K and V are packed, but for tiles, which
    // add up in another order: with these only a single token of few heads is left to vectors, which
    // are a quarter faster there.
    int64_t most_direct() const {
        if (!QUIRE_HAS_TILES || !is_bf16) return MAX_DIRECT_QUERIES;
        return group() < MIN_TILED_GROUP ? 1 : 0;
    }

    bool is_direct(int64_t seq) const {
        return QUIRE_HAS_BF16_DOT && group() <= MAX_DIRECT_GROUP && num_new(seq) <= most_direct() &&
               num_new(seq) * group() <= MAX_DIRECT_ROWS;
    }

    // A direct task's rows are those of one query and one K/V head, at most MOST_SLOTS at a time,
    // whose numbers do not depend on other queries. Either all pieces have more than half of the
    // slots or none, so that all scores have as many partial sums.
    int64_t num_pieces() const {
        const int64_t pieces = ratio_up(group(), MOST_SLOTS);
        return pieces > 1 && group() / pieces <= MOST_SLOTS / 2 ? pieces + 1 : pieces;
    }

    // Returns how many partial sums a score has, as `score_few` and `score_many` make it.
    int64_t split() const {
        if (!QUIRE_HAS_BF16_DOT || group() > MAX_DIRECT_GROUP) return 1;
        return ratio_up(group(), num_pieces()) > MOST_SLOTS / 2 ? 2 : 4;
    }

    Part part(int64_t index, Sizes sizes) const {
        char* place = parts + index * part_bytes;
        return {(Running*)(place + max_rows * sizes.values * 4), (float*)place};
    }

    bool is_inside() const {
        for (int64_t i = 0; i < num_tokens; i++)
            if (slots[i] < 0 || slots[i] >= num_blocks * block_size) return false;
        for (int64_t seq = 0; seq < num_seqs; seq++) {
            int64_t num_new = query_starts[seq + 1] - query_starts[seq];
            if (num_new <= 0) continue;
            int64_t first = first_seen(context_lens[seq] - num_new) / block_size;
            int64_t last = (context_lens[seq] - 1) / block_size;
            if (num_new > context_lens[seq] || last >= table_columns) return false;
            const int32_t* row = table + seq * table_stride;
            for (int64_t i = first; i <= last; i++)
                if (row[i] < 0 || row[i] >= num_blocks) return false;
        }
        return true;
    }
};

// `place`: which of all the stretches as long as this task's part it is, from position 0 on.
struct Task {
    int64_t seq, row, num_queries, position;  // `row` of the batch is at `position`
    int64_t head, num_heads;                  // K/V heads
    int64_t first, end;                       // positions of keys
    int64_t part, num_parts, first_part, place;
};

constexpr int64_t MIN_TASK_ROWS = 128;  // if there are so many
constexpr int64_t MAX_TASK_ROWS = 512;
constexpr int64_t TASKS_PER_THREAD = 4;

// What a row sees of LEAF neighbouring keys, from a multiple of LEAF on, is added up by itself, and
// these sums as a binary tree over all positions: the same tree however tasks are cut, which are
// whole branches of it.
constexpr int64_t LEAF = 256;

// Returns how many branches are open at once in a context of `length`.
inline int64_t num_levels(int64_t length) {
    int64_t out = 1;
    for (int64_t leaves = ratio_up(length, LEAF); leaves > 1; leaves /= 2) out++;
    return out;
}

constexpr int64_t STREAM_BYTES = 1024;  // read at a time of each token, if it has so many

struct Plan {
    Task* tasks;
    int64_t num_tasks, num_parts;
    int64_t work_of_task;  // keys times rows

    bool task(int64_t index, Task* out) const {
        if (index >= num_tasks) return false;
        *out = tasks[num_tasks - 1 - index];
        return true;
    }

    // Returns how many queries a task has. More rows share what is packed; fewer keep all threads
    // busy to the end. No other sequence has a part in the answer.
    static int64_t queries_at_once(const Call& call, int64_t seq) {
        int64_t num_new = call.num_new(seq), most = num_new * call.heads / (2 * call.num_threads);
        int64_t rows = smaller(larger(most, MIN_TASK_ROWS), MAX_TASK_ROWS);
        int64_t queries = larger(rows / call.group(), 1);
        return ratio_up(num_new, larger(ratio_up(num_new, queries), 1));
    }

    static int64_t most_heads(const Call& call) {
        int64_t row_bytes = call.head_size * call.element_bytes();
        return smaller(larger(STREAM_BYTES / row_bytes, 1), call.kv_heads);
    }

    // Returns how many K/V heads a task has. Heads of a token lie side by side: so many are taken
    // as make a long read, in tasks of like size.
    static int64_t heads_at_once(const Call& call, int64_t seq) {
        int64_t num_new = call.num_new(seq), max_rows = MIN_TASK_ROWS;
        if (call.is_direct(seq)) max_rows = MAX_DIRECT_ROWS;
        else if (num_new > 1) return 1;
        int64_t most = smaller(most_heads(call), max_rows / (num_new * call.group()));
        int64_t parts = (call.kv_heads - 1) / larger(most, 1) + 1;
        return (call.kv_heads - 1) / parts + 1;
    }

    // Calls `act` with every task, whole, before it is cut along its keys.
    template <class Act>
    static void each(const Call& call, Act act) {
        for (int64_t seq = 0; seq < call.num_seqs; seq++) {
            int64_t begin = call.query_starts[seq], end = call.query_starts[seq + 1];
            int64_t past = call.context_lens[seq] - (end - begin);
            int64_t heads = heads_at_once(call, seq), most = queries_at_once(call, seq);
            for (int64_t row = begin; row < end; row += most) {
                int64_t count = smaller(most, end - row);
                int64_t position = past + row - begin;
                for (int64_t head = 0; head < call.kv_heads; head += heads)
                    act(Task{seq, row, count, position, head,
                             smaller(heads, call.kv_heads - head), call.first_seen(position),
                             position + count, 0, 1, 0, 0});
            }
        }
    }

    static int64_t rows(const Call& call, const Task& task) {
        return task.num_queries * task.num_heads * call.group();
    }

    int64_t part_keys(const Call& call, const Task& task) const {
        const int64_t least = work_of_task / rows(call, task);
        int64_t out = LEAF;
        while (out < least) out *= 2;
        return out;
    }

    // Cuts the tasks along their keys. Where `tasks` is null they are only counted.
    void cut(const Call& call) {
        int64_t work = 0;
        each(call, [&](Task task) { work += (task.end - task.first) * rows(call, task); });
        bool is_alone = call.num_threads == 1;
        work_of_task = is_alone ? work : work / (TASKS_PER_THREAD * call.num_threads);
        num_tasks = num_parts = 0;
        each(call, [&](Task task) {
            const int64_t size = part_keys(call, task), first = task.first, end = task.end;
            const int64_t begin = first / size;
            const bool is_whole = is_alone || end - first <= size;
            task.num_parts = is_whole ? 1 : ratio_up(end, size) - begin;
            task.first_part = num_parts;
            for (int64_t i = 0; i < task.num_parts; i++) {
                task.part = i;
                task.place = begin + i;
                if (!is_whole) {
                    task.first = larger(first, task.place * size);
                    task.end = smaller((task.place + 1) * size, end);
                }
                if (tasks) tasks[num_tasks] = task;
                num_tasks++;
            }
            if (task.num_parts > 1) num_parts += task.num_parts;
        });
    }
};

template <class Way>
Sizes sizes_of(const Call& call) {
    return {round_up(ratio_up(call.head_size, Way::PER_ELEMENT), Way::DEPTH),
            round_up(call.v_head_size, Way::COLUMNS)};
}

struct Memory {
    uint32_t *keys, *values, *queries;
    float *sums, *totals;
    Running* running;
    Part* levels;                   // branches that are open, the longest first
    char *read_keys, *read_values;  // those of a tile, as the model computes with them
    int64_t num_bytes;

    Memory(const Call& call, Sizes sizes, char* base) {
        Arena arena{base, 0};
        keys = arena.take<uint32_t>(round_up(sizes.depth, LANES) * TILE);
        values = arena.take<uint32_t>(sizes.values * TILE);
        queries = arena.take<uint32_t>(call.max_rows * round_up(sizes.depth, LANES));
        totals = arena.take<float>(call.max_rows * LANES);
        levels = arena.take<Part>(call.num_levels);
        for (int64_t i = 0; i < call.num_levels; i++) {
            sums = arena.take<float>(call.max_rows * sizes.values);
            running = arena.take<Running>(call.max_rows);
            if (base) levels[i] = {running, sums};
        }
        int64_t num_read = call.number == AS_COMPUTED ? 0 : TILE * Plan::most_heads(call);
        read_keys = arena.take<char>(num_read * call.head_size * call.element_bytes());
        read_values = arena.take<char>(num_read * call.v_head_size * call.element_bytes());
        num_bytes = arena.num_bytes;
    }

    // Sums go to this level from now on.
    void use(int64_t level) {
        sums = levels[level].sums;
        running = levels[level].running;
    }
};

struct Layout {
    Plan plan;
    char* workers;
    int64_t worker_bytes, num_bytes;
};

template <class Way>
void complete(Call& call) {
    call.group_size = call.heads / call.kv_heads;
    call.logit_scale = float(call.scale);
    call.logit_cap = float(call.softcap);
    int64_t longest = call.context_lens ? 0 : call.table_columns * call.block_size;
    for (int64_t i = 0; call.context_lens && i < call.num_seqs; i++)
        longest = larger(longest, call.context_lens[i]);
    call.num_levels = num_levels(longest);
    call.max_rows = larger(MAX_TASK_ROWS, call.group());
    int64_t row_bytes = sizes_of<Way>(call).values * 4 + int64_t(sizeof(Running));
    call.part_bytes = round_up(call.max_rows * row_bytes, 64);
}

// Places a plan that has been counted in memory from `base` on. With a null `base` only `num_bytes`
// means something.
template <class Way>
Layout place(Call& call, const Plan& counted, char* base) {
    Layout out{counted};
    Arena arena{base, 0};
    out.worker_bytes = Memory(call, sizes_of<Way>(call), nullptr).num_bytes;
    out.workers = arena.take<char>(out.worker_bytes * call.num_threads);
    call.finished = arena.take<int64_t>(counted.num_parts);
    call.parts = arena.take<char>(call.part_bytes * counted.num_parts);
    out.plan.tasks = arena.take<Task>(counted.num_tasks);
    out.num_bytes = arena.num_bytes;
    return out;
}

// Plans a call and places it in memory from `base` on, which may be null as for `place`.
template <class Way>
Layout lay_out(Call& call, char* base) {
    complete<Way>(call);
    Plan plan{};
    plan.cut(call);
    Layout out = place<Way>(call, plan, base);
    if (!base) return out;
    memset(call.finished, 0, size_t(plan.num_parts) * 8);
    out.plan.cut(call);
    return out;
}

// Returns the bytes that no call of as many K/V heads, tokens and threads exceeds, whatever its
// sequences of up to table_columns * block_size tokens: a task that is cut is longer than a part, so
// that all have at most three times as many parts as shares, which are rounded down by up to a
// LEAF-th.
template <class Way>
int64_t most_scratch(Call& call) {
    call.heads = call.kv_heads;  // up to MAX_TASK_ROWS times as many take the same
    complete<Way>(call);
    Plan plan{};
    plan.num_parts = (3 * TASKS_PER_THREAD + 1) * call.num_threads;
    plan.num_tasks = call.num_tokens * call.kv_heads + plan.num_parts;
    return place<Way>(call, plan, nullptr).num_bytes;
}

}  // namespace
