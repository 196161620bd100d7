// Random products over memory of the exact size: whatever is read or written beyond it, the
// sanitizer tells.
#include <stdio.h>
#include <stdlib.h>

#include "linear.cpp"

namespace {

int64_t below(int64_t n) { return rand() % n; }

template <class T>
T* fresh(int64_t count) {
    T* place = (T*)malloc(size_t(count) * sizeof(T));
    char* bytes = (char*)place;
    for (int64_t i = 0; i < count * int64_t(sizeof(T)); i++) bytes[i] = char(below(64));
    return place;
}

void run_one() {
    static const int64_t WIDTHS[] = {1, 3, 16, 63, 64, 257, 600, 1100};
    const int64_t m = 1 + below(below(2) ? 8 : 90), n = 1 + below(300), k = WIDTHS[below(8)];
    const int64_t num_threads = 1 + below(4);
    uint16_t* x = fresh<uint16_t>(m * k);
    uint16_t* weight = fresh<uint16_t>(n * k);
    uint16_t* bias = below(2) ? fresh<uint16_t>(n) : nullptr;
    uint16_t* y = fresh<uint16_t>(m * n);
    uint32_t* packed = fresh<uint32_t>(ratio_up(n, PANEL) * PANEL * ratio_up(k, 2));
    int64_t* indices = fresh<int64_t>(3);
    uint16_t* rows = fresh<uint16_t>(3 * k);
    for (int64_t i = 0; i < 3; i++) indices[i] = below(n);
    QUIRE_JOIN(quire_linear_pack, QUIRE_ISA)(weight, n, k, packed, num_threads);
    QUIRE_JOIN(quire_linear, QUIRE_ISA)(x, m, packed, bias, n, k, y, num_threads);
    if (!QUIRE_JOIN(quire_linear_rows, QUIRE_ISA)(indices, 3, packed, n, k, rows)) abort();
    indices[2] = n;
    if (QUIRE_JOIN(quire_linear_rows, QUIRE_ISA)(indices, 3, packed, n, k, rows)) abort();
    const void* taken[] = {x, weight, bias, y, packed, indices, rows};
    for (const void* each : taken) free((void*)each);
}

}  // namespace

int main() {
    for (int i = 0; i < 300; i++) {
        srand(unsigned(i));
        run_one();
    }
    puts("clean");
}
