// The first half of candidate pruning: finds the entries of y = x W^T that can be the largest of their
// row, by an int8 product. W is there compressed, as compressed_bf16.h has it, and once more in int8,
// w' ~ w, as w8a8.cpp has it; x' is x in int8. By Cauchy and Schwarz
//
//     |w x - w' x'|  <=  |w - w'| |x| + |w'| |x - x'|
//
// with norms that are measured, not estimated. Bounds are widened by what sums of floats may be off,
// and by what rounding y to bfloat16 makes equal: what is not found is less than something found.
//
// Sets without byte dot products (VNNI) export nothing.
#include "linear/quantised/int8_linear.h"
#include "linear/quantised/int8_packing.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

#include "linear/compressed_bf16.h"
#include "common/packing.h"

namespace {

constexpr int64_t MAX_FOUND = 1024;  // entries of a row that a thread keeps
constexpr float ROUNDED = 1 + 0x1p-9f;  // what a computed norm is less than, times the norm
constexpr float EQUAL = 0x1p-7f;        // what two numbers are apart that round to one, relatively
constexpr float LITTLE = 0x1p-60f;      // what subnormal numbers come to
constexpr float MIN_NORM = 1e-10f, MAX_NORM = 1e15f;  // of x and W, so that nothing overflows

inline __m512 add_square(__m512 sum, __m512 x) { return _mm512_fmadd_ps(x, x, sum); }

inline float norm_of(__m512 squares) {
    return __builtin_sqrtf(_mm512_reduce_add_ps(squares)) * ROUNDED;
}

// Of 16 rows of W: what w' x may be off and |w'|, for |x| = 1.
struct Bounds {
    float errors[LANES], norms[LANES];

    void measure(int64_t r, const bf16* row, int64_t k, Scale by) {
        __m512 error = _mm512_setzero_ps(), whole = error;
        const __m512 scale = _mm512_set1_ps(by.scale);
        for (int64_t i = 0; i < k; i += LANES) {
            const __m512 w = load_some(row + i, first(k - i));
            const __m512 near = _mm512_mul_ps(_mm512_cvtepi32_ps(quantised(w, by)), scale);
            error = add_square(error, _mm512_sub_ps(w, near));
            whole = add_square(whole, w);
        }
        norms[r] = norm_of(whole) + norm_of(error);
        errors[r] = norm_of(error) + float(k + 16) * 0x1p-23f * norms[r];
    }
};

struct Int8Packing {
    const uint8_t* compressed;
    uint8_t* packed;
    Bounds* bounds;
    int64_t num_rows, num_columns;
    char* scratch;  // a panel's rows, for each thread
    int64_t next_worker, next_panel;

    // Of a row, so that it ends with a block.
    int64_t stride() const { return round_up(num_columns, 2 * LANES); }

    // PANEL rows, side by side again.
    void decode(int64_t panel, bf16* rows) const {
        const int64_t num_pairs = ratio_up(num_columns, STEP) * STEP_PAIRS;
        Cursor cursor(compressed, panel, 0);
        for (int64_t pair = 0; pair < num_pairs; pair += LANES) {
            ints halves[2][LANES] = {};
            for (int64_t i = 0; i < LANES && pair + i < num_pairs; i += STEP_PAIRS) {
                __m512i vectors[STEP_PAIRS * 2];
                cursor.take(vectors);
                for (int64_t j = 0; j < STEP_PAIRS * 2; j++)
                    halves[j % 2][i + j / 2] = (ints)vectors[j];
            }
            for (int64_t half = 0; half < 2; half++) {
                transpose_from<1>(halves[half]);
                for (int64_t r = 0; r < LANES; r++)
                    memcpy(rows + (half * LANES + r) * stride() + pair * 2, &halves[half][r], LINE);
            }
        }
    }

    void pack(int64_t panel, bf16* rows) const {
        decode(panel, rows);
        for (int64_t first = 0; first < PANEL; first += LANES) {
            const int64_t row = panel * PANEL + first, count = smaller(num_rows - row, LANES);
            if (count <= 0) return;
            const bf16* own = rows + first * stride();
            const Weights to = {packed, num_rows, num_columns};
            pack_panel(own, stride(), count, to, packed + row / LANES * to.panel_bytes());
            Bounds& measured = bounds[row / LANES];
            measured = {};
            for (int64_t r = 0; r < count; r++)
                measured.measure(r, own + r * stride(), num_columns,
                                  scale_of(own + r * stride(), to));
        }
    }
};

void pack_int8(void* argument) {
    Int8Packing& p = *(Int8Packing*)argument;
    int64_t worker = __atomic_fetch_add(&p.next_worker, 1, __ATOMIC_RELAXED);
    bf16* rows = (bf16*)p.scratch + worker * PANEL * p.stride();
    int64_t num_panels = ratio_up(p.num_rows, PANEL), panel;
    while ((panel = __atomic_fetch_add(&p.next_panel, 1, __ATOMIC_RELAXED)) < num_panels)
        p.pack(panel, rows);
}

inline int64_t num_panels(const FindCandidates& s) { return ratio_up(s.n, PANEL); }

// A row of x: |x| and |x - x'|.
struct Norms {
    float size, error;

    bool is_usable() const { return size > MIN_NORM && size < MAX_NORM; }
};

// What a thread has found of a row: entries that may reach its `least` from above.
struct Found {
    float least, threshold;  // an entry that is at least as large is there; what others must reach
    int64_t count;
    bool is_too_many;
    float reach[MAX_FOUND + LANES];
    uint32_t entries[MAX_FOUND + LANES];

    void clear() {
        least = threshold = -__builtin_inff();
        count = 0;
        is_too_many = false;
    }

    void raise(float to) {
        if (!(to > least)) return;
        least = to;
        threshold = to - __builtin_fabsf(to) * EQUAL - LITTLE;
    }

    void drop() {
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++) {
            reach[kept] = reach[i];
            entries[kept] = entries[i];
            kept += reach[i] >= threshold;
        }
        count = kept;
        is_too_many = count > MAX_FOUND / 2;
    }

    // Lanes of a vector of entries from `entry` on, of which `low` and `high` are bounds.
    void add(__mmask16 lanes, __m512 low, __m512 high, int64_t entry) {
        lanes = _mm512_mask_cmp_ps_mask(lanes, high, _mm512_set1_ps(threshold), _CMP_GE_OQ);
        if (__builtin_expect(!lanes || is_too_many, true)) return;
        raise(_mm512_mask_reduce_max_ps(lanes, low));
        const __m512i numbers =
            _mm512_add_epi32(_mm512_set1_epi32(int(entry)),
                             _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        _mm512_storeu_ps(reach + count, _mm512_maskz_compress_ps(lanes, high));
        _mm512_storeu_si512(entries + count, _mm512_maskz_compress_epi32(lanes, numbers));
        count += __builtin_popcount(lanes);
        if (count > MAX_FOUND) drop();
    }
};

struct Job {
    Linear linear;
    const Bounds* bounds;
    const Norms* norms;
    Found* found;  // [threads, M]
    int64_t next_worker;
};

struct CandidateSink {
    typedef ::Job Job;
    const Job& job;
    Found* found;

    explicit CandidateSink(Job& job) : job(job) {
        int64_t worker = __atomic_fetch_add(&job.next_worker, 1, __ATOMIC_RELAXED);
        found = job.found + worker * job.linear.num_rows;
    }

    template <int VECTORS>
    void put(int64_t row, int64_t count, int64_t panel, const __m512 (*sums)[VECTORS]) {
        const Weights& weights = job.linear.weights;
        for (int v = 0; v < VECTORS && (panel + v) * LANES < weights.num_rows; v++) {
            const int64_t entry = (panel + v) * LANES;
            const __mmask16 lanes = first(weights.num_rows - entry);
            const __m512 scale = _mm512_loadu_ps((const float*)weights.panel(panel + v));
            const __m512 errors = _mm512_loadu_ps(job.bounds[panel + v].errors);
            const __m512 norms = _mm512_loadu_ps(job.bounds[panel + v].norms);
            for (int64_t r = 0; r < count; r++) {
                const Norms& own = job.norms[row + r];
                const __m512 near = _mm512_mul_ps(sums[r][v], scale);
                const __m512 room = _mm512_fmadd_ps(errors, _mm512_set1_ps(own.size),
                                                    _mm512_mul_ps(norms, _mm512_set1_ps(own.error)));
                found[row + r].add(lanes, _mm512_sub_ps(near, room), _mm512_add_ps(near, room), entry);
            }
        }
    }
};

Norms measure(const Linear& l, int64_t row) {
    const int64_t k = l.weights.num_columns;
    const bf16* x = (const bf16*)l.x + row * k;
    __m512 whole = _mm512_setzero_ps(), error = whole;
    for (int64_t i = 0; i < k; i += LANES) {
        const __mmask16 mask = first(k - i);
        const __m512 own = load_some(x + i, mask);
        const __m128i bytes = _mm_maskz_loadu_epi8(mask, l.rows.numbers + row * l.rows.stride + i);
        const __m512 scale = _mm512_set1_ps(l.rows.scales[row * l.rows.num_groups + i / GROUP]);
        const __m512 near = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale);
        whole = add_square(whole, own);
        error = add_square(error, _mm512_sub_ps(own, near));
    }
    return {norm_of(whole), norm_of(error)};
}

struct Layout {
    char* quantised;
    Norms* norms;
    Found* found;
    int64_t num_bytes;
};

Layout lay_out(const FindCandidates& s) {
    const int64_t norms = round_up(s.m * row_bytes(s.k), LINE);
    const int64_t found = norms + round_up(s.m * int64_t(sizeof(Norms)), LINE);
    return {s.scratch, (Norms*)(s.scratch + norms), (Found*)(s.scratch + found),
            found + s.num_threads * s.m * int64_t(sizeof(Found))};
}

// Marks the panels of what all threads have found of a row. Returns how many.
int64_t add_candidates(const FindCandidates& s, const Layout& layout, int64_t row) {
    uint64_t* candidates = s.candidates + row / MASK_ROWS * num_panels(s);
    const uint64_t bit = uint64_t(1) << row % MASK_ROWS;
    Found* first = layout.found + row;
    bool is_all = !layout.norms[row].is_usable();
    for (int64_t i = 0; i < s.num_threads; i++) {
        is_all |= first[i * s.m].is_too_many;
        first->raise(first[i * s.m].least);
    }
    int64_t count = 0;
    const auto add = [&](int64_t panel) {
        count += !(candidates[panel] & bit);
        candidates[panel] |= bit;
    };
    if (is_all)
        for (int64_t panel = 0; panel < num_panels(s); panel++) add(panel);
    for (int64_t i = 0; i < s.num_threads && !is_all; i++)
        for (int64_t j = 0; j < first[i * s.m].count; j++)
            if (first[i * s.m].reach[j] >= first->threshold) add(first[i * s.m].entries[j] / PANEL);
    return count;
}

}  // namespace

extern "C" int64_t quire_candidates_pack_scratch(int64_t k, int64_t num_threads) {
    return num_threads * PANEL * round_up(k, 2 * LANES) * int64_t(sizeof(bf16));
}

extern "C" bool quire_candidates_pack(const void* compressed, int64_t n, int64_t k, void* packed,
                                      void* bounds, char* scratch, int64_t num_threads) {
    Int8Packing packing = {
        (const uint8_t*)compressed, (uint8_t*)packed, (Bounds*)bounds, n, k, scratch, 0, 0};
    in_parallel(num_threads, pack_int8, &packing);
    for (int64_t i = 0; i < n; i++)
        if (!(packing.bounds[i / LANES].norms[i % LANES] < MAX_NORM)) return false;
    return true;
}

extern "C" int64_t quire_find_candidates_scratch(const FindCandidates* s) {
    return lay_out(*s).num_bytes;
}

extern "C" int64_t quire_find_candidates(const FindCandidates* s) {
    const Layout layout = lay_out(*s);
    Job job = {};
    job.linear.x = s->x;
    job.linear.is_bf16 = true;
    job.linear.num_rows = s->m;
    job.bounds = (const Bounds*)s->bounds;
    job.norms = layout.norms;
    job.found = layout.found;
    begin(job.linear, {s->packed, s->n, s->k}, layout.quantised, s->num_threads);
    for (int64_t row = 0; row < s->m; row++) layout.norms[row] = measure(job.linear, row);
    for (int64_t i = 0; i < s->num_threads * s->m; i++) layout.found[i].clear();
    memset(s->candidates, 0, size_t(ratio_up(s->m, MASK_ROWS) * num_panels(*s)) * 8);
    multiply<CandidateSink>(job, s->num_threads);
    int64_t count = 0;
    for (int64_t row = 0; row < s->m; row++) count += add_candidates(*s, layout, row);
    return count;
}

#endif
