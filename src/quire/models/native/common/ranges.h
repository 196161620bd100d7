// Work in ranges: each worker goes through one of its own, in order, and then helps with the others.
#pragma once

#include "common/common.h"

namespace {

constexpr int64_t MAX_RANGES = 64;

struct alignas(LINE) Counter {
    int64_t next;
};

struct Ranges {
    int64_t count, num_workers;
    Counter taken[MAX_RANGES];

    explicit Ranges(int64_t count) : count(count), num_workers(0), taken{} {}

    // Where the `range`th begins of as many as are shared out.
    int64_t begin(int64_t range, int64_t of) const { return of * range / count; }
};

// A worker's way through all of them.
class Claims {
    Ranges& ranges;
    const int64_t worker;
    int64_t turn = 0;

   public:
    explicit Claims(Ranges& ranges)
        : ranges(ranges), worker(__atomic_fetch_add(&ranges.num_workers, 1, __ATOMIC_RELAXED)) {}

    // Which of the `size(range)` things of a range is next to be done. False: none is left.
    template <class Size>
    bool take(Size size, int64_t& range, int64_t& at) {
        for (; turn < ranges.count; turn++) {
            range = (worker + turn) % ranges.count;
            at = __atomic_fetch_add(&ranges.taken[range].next, 1, __ATOMIC_RELAXED);
            if (at < size(range)) return true;
        }
        return false;
    }
};

// What a worker does of so many things: those of its own range, in order, then what is left.
template <class Act>
void do_share(Ranges& ranges, int64_t num_things, Act act) {
    Claims claims(ranges);
    const auto first = [&](int64_t range) { return ranges.begin(range, num_things); };
    const auto size = [&](int64_t range) { return first(range + 1) - first(range); };
    int64_t range, at;
    while (claims.take(size, range, at)) act(first(range) + at);
}

}  // namespace
