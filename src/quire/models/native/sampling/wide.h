// A top-p set too wide to list: by the leading bits of the keys, buckets of tokens are kept or
// dropped whole, and only those of the one where it ends need an order.
#pragma once

#include "sampling/spans.h"

namespace {

constexpr int BUCKET_SHIFT = 21;
constexpr int NUM_BUCKETS = 1 << (32 - BUCKET_SHIFT);

struct WideTopP {
    Row& row;
    float temperature;
    int32_t last;  // the bucket where it ends

    // Those of some lanes. The fill of the last span weighs nothing, whatever its bucket.
    ints buckets(int64_t first) const {
        ints keys = keys_of(load(row.logits + first));
        return (keys >> BUCKET_SHIFT) & (NUM_BUCKETS - 1);
    }

    // The weights of a span's lanes that are in buckets kept whole; the other lanes weigh nothing.
    void weigh_kept(int64_t span, int64_t* weights) const {
        for (int64_t k = 0; k < SPAN; k += LANES) {
            int64_t first = span * SPAN + k;
            row.weigh(load(row.logits + first), temperature, weights + k);
            longs mask = __builtin_convertvector(buckets(first) < last, longs), each;
            memcpy(&each, weights + k, sizeof each);
            each &= mask;
            memcpy(weights + k, &each, sizeof each);
        }
    }

    // Finds `last` and returns the weight before it.
    int64_t find_last(double target) {
        int64_t sums[NUM_BUCKETS] = {}, before = 0, each[LANES];
        for (int64_t first = 0; first < row.num_spans * SPAN; first += LANES) {
            ints own = buckets(first);
            row.weigh(load(row.logits + first), temperature, each);
            for (int k = 0; k < LANES; k++) sums[own[k]] += each[k];
        }
        for (last = 0; last < NUM_BUCKETS - 1; last++) {
            if (double(before + sums[last]) >= target) break;
            before += sums[last];
        }
        return before;
    }

    // The tokens of `last`.
    void collect_last() {
        int64_t count = 0;
        for (int64_t first = 0; first < row.num_spans * SPAN; first += LANES) {
            ints mask = buckets(first) == last;
            if (!any(mask)) continue;
            ints keys = keys_of(load(row.logits + first));
            for (int k = 0; k < LANES; k++) {
                row.ids[count] = uint32_t(first + k);
                row.among.keys[count] = uint32_t(keys[k]);
                count += mask[k] != 0;
            }
        }
        row.among.count = count;
    }

    void fill_sums() {
        int64_t lanes[SPAN];
        for (int64_t i = 0; i < row.num_spans; i++) {
            weigh_kept(i, lanes);
            row.sums[i] = 0;
            for (int64_t each : lanes) row.sums[i] += each;
        }
        for (int64_t i = 0; i < row.among.count; i++)
            row.sums[row.ids[i] / SPAN] += row.among.weights[i];
    }

    int64_t sample(double target, double noise) {
        int64_t before = find_last(target), lanes[SPAN];
        collect_last();
        row.weigh(temperature);
        keep_leading(row.among, false, target - double(before), row.spare);
        fill_sums();
        Picked span = pick(row.sums, row.num_spans, noise);
        weigh_kept(span.place, lanes);
        for (int64_t i = 0; i < row.among.count; i++)
            if (row.ids[i] / SPAN == span.place) lanes[row.ids[i] % SPAN] = row.among.weights[i];
        return span.place * SPAN + pick(lanes, SPAN, span.rest).place;
    }
};

}  // namespace
