// Finds a tile's K and V in the store, and reads them as the model computes with them.
#pragma once

#include "attention/plan.h"

namespace {

// Where each key of a tile, its value and its slot lie: the row of a task's first head, which those
// of its other heads follow.
struct Places {
    const char *keys[TILE], *values[TILE];
    int64_t slots[TILE];
};

template <class Stored>
struct Found {
    const Stored *keys[TILE], *values[TILE];
};

// The tile after this one comes from memory while this one is computed, a few of its keys or values
// for every few rows: all at once they would wait for each other.
struct Next {
    const char *const *keys, *const *values;
    int64_t count, key_bytes, value_bytes, at_once, done;

    static void fetch(const char* row, int64_t num_bytes) {
        for (const char* line = row; line < row + num_bytes; line += LINE)
            __builtin_prefetch(line, 0, 2);
    }

    void fetch_some() {
        int64_t end = smaller(done + at_once, count);
        for (; done < end; done++) {
            fetch(keys[done], key_bytes);
            if (value_bytes) fetch(values[done], value_bytes);
        }
    }
};

inline void fetch_scales(const Call& call, int64_t slot) {
    __builtin_prefetch(call.key_scales + slot * call.kv_heads, 0, 2);
    if (call.values) __builtin_prefetch(call.value_scales + slot * call.kv_heads, 0, 2);
}

// Finds the keys of the tile at position `at` that the task sees. Their neighbours stand in for the
// others: they are read again, and masked.
inline void find(const Call& call, const Task& task, int64_t at, Places& places) {
    const int64_t first = larger(at, task.first), count = smaller(TILE, task.end - at);
    const int64_t key_bytes = call.head_size * call.kept_bytes();
    const int64_t value_bytes = call.values ? call.v_head_size * call.kept_bytes() : key_bytes;
    const char* values = call.values ? call.values : call.keys;
    const int32_t* block = call.table + task.seq * call.table_stride + first / call.block_size;
    for (int64_t i = first - at, offset = first % call.block_size; i < count; block++, offset = 0) {
        int64_t slot = *block * call.block_size + offset;
        const int64_t end = smaller(count, i + call.block_size - offset);
        const char* key = call.keys + (slot * call.kv_heads + task.head) * key_bytes;
        const char* value = values + (slot * call.kv_heads + task.head) * value_bytes;
        if (call.number != AS_COMPUTED) fetch_scales(call, slot);
        for (; i < end; i++, slot++) {
            places.keys[i] = key;
            places.values[i] = value;
            places.slots[i] = slot;
            key += call.kv_heads * key_bytes;
            value += call.kv_heads * value_bytes;
        }
    }
    const auto stand_in = [&](int64_t i, int64_t other) {
        places.keys[i] = places.keys[other];
        places.values[i] = places.values[other];
        places.slots[i] = places.slots[other];
    };
    for (int64_t i = 0; i < first - at; i++) stand_in(i, first - at);
    for (int64_t i = count; i < TILE; i++) stand_in(i, count - 1);
}

template <class Stored>
void decode_rows(const Call& call, const Task& task, const char* const* kept, const int64_t* slots,
                 int64_t count, int64_t width, const bf16* scales, Stored* place,
                 const Stored** rows) {
    for (int64_t i = 0; i < count; i++) {
        rows[i] = place;
        const bf16* own = scales + slots[i] * call.kv_heads + task.head;
        for (int64_t head = 0; head < task.num_heads; head++, place += width)
            decode((const int8_t*)kept[i] + head * width, width, own[head], Number(call.number),
                   place);
    }
    for (int64_t i = count; i < TILE; i++) rows[i] = rows[count - 1];
}

// Reads the keys and values at `places`, of which the first `count` are different ones.
template <class Stored>
void read(const Call& call, const Task& task, const Memory& memory, const Places& places,
          int64_t count, Found<Stored>& found) {
    if (call.number == AS_COMPUTED) {
        for (int64_t i = 0; i < TILE; i++) {
            found.keys[i] = (const Stored*)places.keys[i];
            found.values[i] = (const Stored*)places.values[i];
        }
        return;
    }
    decode_rows(call, task, places.keys, places.slots, count, call.head_size, call.key_scales,
                (Stored*)memory.read_keys, found.keys);
    if (call.values)
        decode_rows(call, task, places.values, places.slots, count, call.v_head_size,
                    call.value_scales, (Stored*)memory.read_values, found.values);
    else
        memcpy(found.values, found.keys, sizeof found.keys);
}

}  // namespace
