// y[M, N] = x[M, K] W[N, K]^T + bias, where panels of W begin with the scales of their rows.
#pragma once

#include "linear/quantised/int8_linear.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

// `bias` and `y` are of the type of x.
struct Job {
    Linear linear;
    const void* bias;  // null: none
    void* y;
};

struct Store {
    typedef ::Job Job;
    const Job& job;

    explicit Store(const Job& job) : job(job) {}

    template <int VECTORS>
    void put(int64_t row, int64_t count, int64_t panel, const __m512 (*sums)[VECTORS]) const {
        job.linear.is_bf16 ? put_as<bf16>(row, count, panel, sums)
                           : put_as<float>(row, count, panel, sums);
    }

    template <class T, int VECTORS>
    void put_as(int64_t row, int64_t count, int64_t panel, const __m512 (*sums)[VECTORS]) const {
        const Weights& weights = job.linear.weights;
        const int64_t n = weights.num_rows;
        for (int v = 0; v < VECTORS && (panel + v) * LANES < n; v++) {
            const int64_t at = (panel + v) * LANES;
            const __mmask16 mask = first(n - at);
            const __m512 scale = _mm512_loadu_ps((const float*)weights.panel(panel + v));
            const __m512 bias =
                job.bias ? load_some((const T*)job.bias + at, mask) : _mm512_setzero_ps();
            for (int64_t r = 0; r < count; r++)
                ::put((T*)job.y + (row + r) * n + at, _mm512_fmadd_ps(sums[r][v], scale, bias),
                      mask);
        }
    }
};

inline void store_product(const void* x, bool is_bf16, int64_t m, const Weights& weights,
                          const void* bias, void* y, char* scratch, int64_t num_threads) {
    if (m == 0 || weights.num_rows == 0) return;
    Job job = {};
    job.linear.x = x;
    job.linear.is_bf16 = is_bf16;
    job.linear.num_rows = m;
    job.bias = bias;
    job.y = y;
    begin(job.linear, weights, scratch, num_threads);
    multiply<Store>(job, num_threads);
}

struct Packing {
    const void* weight;
    bool is_bf16;
    Weights weights;
    int64_t next_panel;
};

template <class Form>
void pack_panels(void* argument) {
    Packing& p = *(Packing*)argument;
    const Weights& to = p.weights;
    const int64_t k = to.num_columns;
    int64_t panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < to.num_panels()) {
        const int64_t first = panel * LANES, count = smaller(LANES, to.num_rows - first);
        uint8_t* out = (uint8_t*)to.panel(panel);
        p.is_bf16 ? Form::pack((const bf16*)p.weight + first * k, count, to, out)
                  : Form::pack((const float*)p.weight + first * k, count, to, out);
    }
}

// Packs all panels of a weight, each by `Form::pack`.
template <class Form>
void pack_all(const void* weight, bool is_bf16, const Weights& to, int64_t num_threads) {
    Packing packing = {weight, is_bf16, to, 0};
    in_parallel(num_threads, pack_panels<Form>, &packing);
}

// Looks up rows of W by `Form::unpack`. Returns false if an index is not below N.
template <class Form>
bool unpack_rows(const Weights& weights, const int64_t* indices, int64_t count, bool is_bf16,
                 void* y) {
    const int64_t k = weights.num_columns;
    for (int64_t i = 0; i < count; i++) {
        if (indices[i] < 0 || indices[i] >= weights.num_rows) return false;
        is_bf16 ? Form::unpack(weights, indices[i], (bf16*)y + i * k)
                : Form::unpack(weights, indices[i], (float*)y + i * k);
    }
    return true;
}

}  // namespace

#endif
