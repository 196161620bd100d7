// Writes the step's K and V into their slots.
#pragma once

#include "attention/plan.h"

namespace {

struct Writing {
    const Call* call;
    int64_t next_token;
};

// Writes the K or the V of one token; `row` is that of its first head.
template <class Stored>
void write_row(const Call& call, const Stored* row, int64_t head_stride, int64_t width, int64_t slot,
               char* kept, bf16* scales) {
    const int64_t num_bytes = width * call.kept_bytes();
    for (int64_t head = 0; head < call.kv_heads; head++, row += head_stride) {
        const int64_t place = slot * call.kv_heads + head;
        if (call.number == AS_COMPUTED)
            memcpy(kept + place * num_bytes, row, size_t(num_bytes));
        else
            encode(row, width, Number(call.number), (int8_t*)kept + place * width, scales + place);
    }
}

constexpr int64_t TOKENS_AT_ONCE = 32;

template <class Stored>
void write_tokens(void* argument) {
    Writing& writing = *(Writing*)argument;
    const Call& call = *writing.call;
    for (;;) {
        int64_t first = __atomic_fetch_add(&writing.next_token, TOKENS_AT_ONCE, __ATOMIC_RELAXED);
        if (first >= call.num_tokens) return;
        int64_t end = smaller(first + TOKENS_AT_ONCE, call.num_tokens);
        for (int64_t token = first; token < end; token++) {
            int64_t slot = call.slots[token];
            write_row(call, (const Stored*)call.key + token * call.key_token_stride,
                      call.key_head_stride, call.head_size, slot, call.keys, call.key_scales);
            if (call.values)
                write_row(call, (const Stored*)call.value + token * call.value_token_stride,
                          call.value_head_stride, call.v_head_size, slot, call.values,
                          call.value_scales);
        }
    }
}

}  // namespace
