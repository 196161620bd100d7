// Which of the instruction sets compiled in this machine can run.
#include "common/common.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define QUIRE_IS_portable 1
#define QUIRE_IS(isa) QUIRE_JOIN(QUIRE_IS, isa)

#if QUIRE_IS(QUIRE_ISA) == 1

namespace {

// Linux hands tiles only to a process that has asked for them.
bool has_tiles() {
#if defined(__x86_64__) && defined(__linux__)
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24, INT8 = 1u << 25;
    constexpr long ASK = 0x1023, TILE_DATA = 18;  // of arch_prctl
    unsigned a, b, c, d = 0;
    __get_cpuid_count(7, 0, &a, &b, &c, &d);
    if ((d & (BF16 | TILES | INT8)) != (BF16 | TILES | INT8)) return false;
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
#else
    return false;
#endif
}

}  // namespace

// 0 portable, 1 avx2, 2 avx512, 3 amx.
extern "C" __attribute__((visibility("default"))) int quire_best_isa() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
        return has_tiles() ? 3 : 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

// Is there an OpenMP runtime to share?
extern "C" __attribute__((visibility("default"))) int quire_has_threads() {
    return GOMP_parallel != nullptr;
}
#endif
