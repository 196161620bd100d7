// Fetches memory ahead of its use.
#pragma once

#include "common/common.h"

namespace {

// Fetches what lies in some rows line by line, in its order, while something else is computed: all
// at once the lines would wait for each other.
struct Ahead {
    const char* const* rows;
    int64_t num_rows, row_bytes;
    int64_t at;  // the next byte of the first row

    void fetch() {
        if (num_rows == 0) return;
        __builtin_prefetch(*rows + at, 0, 2);
        at += 64;
        if (at < row_bytes) return;
        at = 0;
        rows++;
        num_rows--;
    }

    void fetch(int64_t num_lines) {
        for (; num_lines > 0 && num_rows; num_lines--) fetch();
    }

    void fetch_rest() {
        while (num_rows) fetch();
    }
};

}  // namespace
