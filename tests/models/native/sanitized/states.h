// States and random pieces of a step's rows, for the kernels of recurrent layers.
#pragma once

#include "sanitized.h"

namespace {

// Offsets from 0 to `last` in `count` random steps, none of them empty.
int32_t* random_offsets(int64_t count, int64_t last) {
    int32_t* offsets = zeros<int32_t>(count + 1);
    for (int64_t i = 1; i <= count; i++)
        offsets[i] = int32_t(offsets[i - 1] + 1 + below(last - offsets[i - 1] - (count - i)));
    offsets[count] = int32_t(last);
    return offsets;
}

struct RandomStates {
    StatePieces pieces;
    StateStore store;

    RandomStates(int64_t num_tokens, int64_t state_size) : pieces{}, store{} {
        const int64_t num_pieces = 1 + below(num_tokens), num_seqs = 1 + below(num_pieces);
        int32_t *reads = zeros<int32_t>(num_pieces), *writes = zeros<int32_t>(num_pieces);
        int32_t* sequences = random_offsets(num_seqs, num_pieces);
        for (int64_t i = 0; i < num_seqs; i++)
            for (int64_t at = sequences[i]; at < sequences[i + 1]; at++) {
                reads[at] = at == sequences[i] ? int32_t(below(2) * (i + 1)) : writes[at - 1];
                writes[at] = int32_t(i + 1);
            }
        pieces = {random_offsets(num_pieces, num_tokens), reads, writes, sequences, num_pieces,
                  num_seqs, num_tokens};
        store.num_states = num_seqs + 1;
        store.stride = state_size + below(40);
        store.states = zeros<float>(num_seqs * store.stride + state_size);
    }

    ~RandomStates() {
        const void* taken[] = {pieces.starts, pieces.reads, pieces.writes, pieces.sequences,
                               store.states};
        give_back(taken);
    }
};

// Rows of `width` elements that lie `stride` apart, of small numbers.
template <class Stored>
Stored* rows_of(int64_t num_tokens, int64_t width, int64_t stride) {
    const int64_t count = (num_tokens - 1) * stride + width;
    Stored* place = zeros<Stored>(count);
    for (int64_t i = 0; i < count; i++) store_as(place + i, float(below(200) - 100) / 100);
    return place;
}

}  // namespace
