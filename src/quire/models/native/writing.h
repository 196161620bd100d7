// The step's K and V go into their slots.
#pragma once

#include "plan.h"

namespace {

struct Writing {
    const Call* call;
    int64_t next_token;
};

template <class Stored>
void write_row(const char* row, int64_t heads, int64_t head_stride, int64_t width, Stored* kept) {
    for (int64_t head = 0; head < heads; head++)
        memcpy(kept + head * width, (const Stored*)row + head * head_stride,
               size_t(width) * sizeof(Stored));
}

constexpr int64_t TOKENS_AT_ONCE = 32;

// What comes in is read and written as it is.
template <class Stored>
void write_tokens(void* argument) {
    Writing& writing = *(Writing*)argument;
    const Call& call = *writing.call;
    const int64_t size = int64_t(sizeof(Stored));
    for (;;) {
        int64_t first = __atomic_fetch_add(&writing.next_token, TOKENS_AT_ONCE, __ATOMIC_RELAXED);
        if (first >= call.num_tokens) return;
        int64_t end = smaller(first + TOKENS_AT_ONCE, call.num_tokens);
        for (int64_t token = first; token < end; token++) {
            int64_t slot = call.slots[token];
            write_row((const char*)call.key + token * call.key_token_stride * size, call.kv_heads,
                      call.key_head_stride, call.k_width,
                      (Stored*)call.keys + slot * call.kv_heads * call.k_width);
            if (call.values)
                write_row((const char*)call.value + token * call.value_token_stride * size,
                          call.kv_heads, call.value_head_stride, call.v_width,
                          (Stored*)call.values + slot * call.kv_heads * call.v_width);
        }
    }
}

}  // namespace
