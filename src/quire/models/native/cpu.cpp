// Which of the instruction sets compiled in this machine can run.
#include "common.h"

#define QUIRE_IS_portable 1
#define QUIRE_IS(isa) QUIRE_JOIN(QUIRE_IS, isa)

#if QUIRE_IS(QUIRE_ISA) == 1
// 0 portable, 1 avx2, 2 avx512.
extern "C" __attribute__((visibility("default"))) int quire_best_isa() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// Is there an OpenMP runtime to share?
extern "C" __attribute__((visibility("default"))) int quire_has_threads() {
    return GOMP_parallel != nullptr;
}
#endif
