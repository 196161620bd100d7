// Chooses the steps, begins and nibbles of rows of W, and packs them as w4a8.cpp says.
//
// A run's numbers are about begin + step * nibble. Nibbles are first spread over the run's range, or
// a wider or narrower one; step and begin are then those of least squares for them, and the nibbles
// the nearest for these. The range with the least error is taken. The importance of a column weighs its
// squared errors; where it is not known, the size of the number and the mean size of the run's do.
#pragma once

#include "linear/quantised/int8_packing.h"

#if defined(__AVX512VNNI__) && QUIRE_HAS_BF16_DOT

namespace {

constexpr float RANGES[] = {15, 14.4f, 13.8f, 13.2f, 12.6f, 15.5f, 16};  // in steps
constexpr int32_t HIGHEST = 15, LARGEST_STEP = 255, LARGEST_BYTE = 255;
constexpr float ONE = 1 << FRACTION;
constexpr float REACH = 119;  // bytes from 0 to a row's largest number: a run of both signs has a step

// The 32 numbers of a run, in bytes of the row, as shares of its scale; `weights` are 0 beyond it.
struct RunNumbers {
    __m512 numbers[2], weights[2];
    float lowest, range;
};

// A run's step and begin, in sixteenths of a byte.
struct Affine {
    float step, begin;
};

inline float sum_of(__m512 a, __m512 b) { return _mm512_reduce_add_ps(_mm512_add_ps(a, b)); }

inline __m512 nearest(__m512 numbers, float begin, float inverse) {
    const __m512 steps = _mm512_mul_ps(_mm512_sub_ps(numbers, _mm512_set1_ps(begin)),
                                       _mm512_set1_ps(inverse));
    const __m512 whole = _mm512_roundscale_ps(steps, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_min_ps(_mm512_max_ps(whole, _mm512_setzero_ps()), _mm512_set1_ps(HIGHEST));
}

// The numbers of a row's run from column `at` on, `by` what makes them bytes. Outliers have no weight.
template <class T>
RunNumbers numbers_of(const T* row, int64_t at, const Weights& to, float by) {
    RunNumbers out;
    __mmask16 masks[2];
    for (int i = 0; i < 2; i++) {
        masks[i] = first(to.num_columns - at - i * LANES);
        if (to.outliers && masks[i]) masks[i] &= to.others()[at / LANES + i];
    }
    const int count = __builtin_popcount(uint32_t(masks[0]) | uint32_t(masks[1]) << LANES);
    __m512 sizes_[2];
    float lowest = __builtin_inff(), highest = -__builtin_inff();
    for (int i = 0; i < 2; i++) {
        const __m512 read = load_some(row + at + i * LANES, masks[i]);
        out.numbers[i] = _mm512_mul_ps(read, _mm512_set1_ps(by));
        sizes_[i] = _mm512_abs_ps(out.numbers[i]);
        if (!masks[i]) continue;
        lowest = __builtin_fminf(lowest, _mm512_mask_reduce_min_ps(masks[i], out.numbers[i]));
        highest = __builtin_fmaxf(highest, _mm512_mask_reduce_max_ps(masks[i], out.numbers[i]));
    }
    const __m512 mean = _mm512_set1_ps(sum_of(sizes_[0], sizes_[1]) / float(larger(count, 1)));
    for (int i = 0; i < 2; i++)
        out.weights[i] = to.importance ? load_some(to.importance + at + i * LANES, masks[i])
                                       : _mm512_maskz_add_ps(masks[i], sizes_[i], mean);
    out.lowest = count ? lowest : 0;
    out.range = count ? highest - lowest : 0;
    return out;
}

inline float error_of(const RunNumbers& run, Affine by) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < 2; i++) {
        const __m512 n = nearest(run.numbers[i], by.begin, 1 / by.step);
        const __m512 back = _mm512_fmadd_ps(n, _mm512_set1_ps(by.step), _mm512_set1_ps(by.begin));
        const __m512 off = _mm512_sub_ps(back, run.numbers[i]);
        sum = _mm512_fmadd_ps(_mm512_mul_ps(run.weights[i], off), off, sum);
    }
    return _mm512_reduce_add_ps(sum);
}

// Least squares for the nibbles that a range of so many steps gives.
inline Affine fitted(const RunNumbers& run, float num_steps) {
    const float step = run.range / num_steps;
    __m512 ones = {}, n1 = {}, n2 = {}, x1 = {}, xn = {};
    for (int i = 0; i < 2; i++) {
        const __m512 n = nearest(run.numbers[i], run.lowest, 1 / step), w = run.weights[i];
        const __m512 wn = _mm512_mul_ps(w, n);
        ones = _mm512_add_ps(ones, w);
        n1 = _mm512_add_ps(n1, wn);
        n2 = _mm512_fmadd_ps(wn, n, n2);
        x1 = _mm512_fmadd_ps(w, run.numbers[i], x1);
        xn = _mm512_fmadd_ps(wn, run.numbers[i], xn);
    }
    const float w = _mm512_reduce_add_ps(ones), a = _mm512_reduce_add_ps(n1);
    const float b = _mm512_reduce_add_ps(n2), x = _mm512_reduce_add_ps(x1);
    const float y = _mm512_reduce_add_ps(xn), determinant = w * b - a * a;
    if (!(determinant > 0)) return {step, run.lowest};
    const float slope = (w * y - a * x) / determinant;
    return slope > 0 ? Affine{slope, (x - a * slope) / w} : Affine{step, run.lowest};
}

// Whether step and begin have room, and the bytes of all nibbles too.
inline bool is_stored(Affine by) {
    const float end = by.begin + HIGHEST * by.step;
    return by.step * ONE <= LARGEST_STEP && by.begin >= 1 - ZERO && end <= LARGEST_BYTE - 1 - ZERO;
}

inline Affine best_affine(const RunNumbers& run) {
    if (!(run.range > 0)) return {0, run.lowest};
    Affine best = {run.range / HIGHEST, run.lowest};
    float least = error_of(run, best);
    for (float num_steps : RANGES) {
        const Affine tried = fitted(run, num_steps);
        if (!is_stored(tried)) continue;
        const float error = error_of(run, tried);
        if (error < least) least = error, best = tried;
    }
    return best;
}

// Packs a run of row r; `lines` are those of its group, `j` its place there.
inline void pack_run(const RunNumbers& run, int64_t count, int64_t r, int64_t j, uint8_t* lines) {
    const Affine by = best_affine(run);
    const int32_t step = int32_t(__builtin_rintf(by.step * ONE));
    // Half a byte more: what is cut off behind the point is rounded.
    const int32_t begin =
        int32_t(__builtin_rintf((by.begin + float(ZERO)) * ONE)) + (1 << FRACTION) / 2;
    step_at(lines, j)[r] = uint8_t(step);
    begin_at(lines, j)[r] = uint16_t(begin);
    float numbers[RUN];
    for (int i = 0; i < 2; i++) _mm512_storeu_ps(numbers + i * LANES, run.numbers[i]);
    for (int64_t i = 0; i < count; i++) {
        const float wanted = numbers[i] + float(ZERO);
        // Bytes rise with their nibbles: the nearest is about where the step says.
        const float about = step ? (wanted * ONE - float(begin)) / float(step) : 0;
        const int32_t near = int32_t(__builtin_fminf(__builtin_fmaxf(about, 0), float(HIGHEST)));
        int32_t best = 0;
        float least = __builtin_inff();
        for (int32_t n = near ? near - 1 : 0; n <= HIGHEST && n <= near + 2; n++) {
            const float off = __builtin_fabsf(float(byte_of(n, step, begin)) - wanted);
            if (off < least) least = off, best = n;
        }
        uint8_t& both = lines[(HEAD_LINES + j * RUN_LINES + i / 8) * LINE + r * QUAD + i % QUAD];
        both = uint8_t(both | best << (i % 8 < QUAD ? 0 : 4));
    }
}

// Packs row r of a panel; `lines` are those behind the head. Returns the row's scale.
template <class T>
float pack_nibble_row(const T* row, const Weights& to, int64_t r, uint8_t* lines) {
    const int64_t k = to.num_columns;
    const Scale by = scale_of(row, to);
    if (by.inverse == 0) return by.scale;  // nothing, or not finite
    const float inverse = by.inverse * (REACH / LARGEST);
    for (int64_t at = 0; at < k; at += RUN) {
        const int64_t count = smaller(RUN, k - at), group = at / GROUP;
        pack_run(numbers_of(row, at, to, inverse), count, r, at % GROUP / RUN,
                 lines + group * GROUP_LINES * LINE);
    }
    return by.scale * (LARGEST / REACH);
}

// Packs a panel of up to LANES rows.
template <class T>
void pack_nibbles(const T* rows, int64_t count, const Weights& to, uint8_t* out) {
    const int64_t k = to.num_columns;
    uint8_t* lines = out + to.head_lines() * LINE;
    memset(out, 0, size_t(to.panel_bytes()));
    for (int64_t group = 0; group * GROUP < k; group++)
        for (int64_t j = 0; j < GROUP_RUNS; j++)
            for (int64_t r = 0; r < LANES; r++)
                begin_at(lines + group * GROUP_LINES * LINE, j)[r] = uint16_t(ZERO << FRACTION);
    for (int64_t r = 0; r < count; r++) {
        const float scale = pack_nibble_row(rows + r * k, to, r, lines);
        pack_head(rows + r * k, scale, r, to, out);
    }
}

}  // namespace

#endif
