// The second half of candidate pruning: y[M, N] = x[M, K] W[N, K]^T in bfloat16, where only candidate
// panels of W are multiplied, each for the rows of x that it is a candidate for. Those entries are
// equal to compressed_bf16.cpp's to the bit; all others are -inf.

#if defined(__AVX512BF16__)

#include "linear/panel_products.h"

namespace {

constexpr int64_t SPAN = 64;  // panels that a thread takes at a time
constexpr uint16_t NEVER = 0xff80;  // -inf

struct Job {
    const CandidateProduct& call;
    Weights weights;
    int64_t next_worker, next_span;
};

struct Worker {
    const CandidateProduct& call;
    const Weights& weights;
    uint16_t* x;

    void clear(int64_t panel, int64_t end) const {
        const int64_t from = panel * PANEL, upto = smaller(end * PANEL, call.n);
        for (int64_t row = 0; row < call.m; row++)
            for (int64_t i = from; i < upto; i++) call.y[row * call.n + i] = NEVER;
    }

    void multiply(int64_t panel, const int64_t* rows, int64_t count) const {
        uint16_t y[MAX_PANEL_ROWS * PANEL];
        const size_t row_bytes = size_t(call.k) * sizeof(uint16_t);
        for (int64_t i = 0; i < count; i++) memcpy(x + i * call.k, call.x + rows[i] * call.k, row_bytes);
        PanelProduct(weights, x, count).put(panel, y, PANEL);
        const size_t num_bytes = size_t(smaller(PANEL, call.n - panel * PANEL)) * sizeof(uint16_t);
        for (int64_t i = 0; i < count; i++)
            memcpy(call.y + rows[i] * call.n + panel * PANEL, y + i * PANEL, num_bytes);
    }

    void visit(int64_t panel) const {
        int64_t rows[MAX_PANEL_ROWS], count = 0;
        for (int64_t first = 0; first < call.m; first += MASK_ROWS) {
            uint64_t mask = call.candidates[first / MASK_ROWS * weights.num_panels() + panel];
            for (; mask; mask &= mask - 1) {
                rows[count++] = first + __builtin_ctzll(mask);
                if (count < MAX_PANEL_ROWS) continue;
                multiply(panel, rows, count);
                count = 0;
            }
        }
        if (count) multiply(panel, rows, count);
    }
};

void work(void* argument) {
    Job& job = *(Job*)argument;
    const CandidateProduct& call = job.call;
    int64_t id = __atomic_fetch_add(&job.next_worker, 1, __ATOMIC_RELAXED);
    Worker worker{call, job.weights, (uint16_t*)call.scratch + id * MAX_PANEL_ROWS * call.k};
    const int64_t num_panels = job.weights.num_panels();
    int64_t span;
    while ((span = __atomic_fetch_add(&job.next_span, 1, __ATOMIC_RELAXED)) * SPAN < num_panels) {
        const int64_t end = smaller((span + 1) * SPAN, num_panels);
        worker.clear(span * SPAN, end);
        for (int64_t panel = span * SPAN; panel < end; panel++) worker.visit(panel);
    }
}

}  // namespace

extern "C" int64_t quire_candidate_product_scratch(int64_t k, int64_t num_threads) {
    return num_threads * MAX_PANEL_ROWS * k * int64_t(sizeof(uint16_t));
}

extern "C" void quire_candidate_product(const CandidateProduct* call) {
    Job job = {*call, {call->packed, nullptr, call->n, call->k}, 0, 0};
    in_parallel(call->num_threads, work, &job);
}

#endif
