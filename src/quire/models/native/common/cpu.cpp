// What the library says of itself: which of its instruction sets this machine can run, and its ABI.
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

#define QUIRE_ONCE extern "C" __attribute__((visibility("default")))

// 0 portable, 1 avx2, 2 avx512, 3 amx.
QUIRE_ONCE int quire_best_isa() {
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
QUIRE_ONCE int quire_has_threads() {
    return GOMP_parallel != nullptr;
}

// abi.h as this library was compiled with it, without comments.
#define QUIRE_STRUCT(...) "QUIRE_STRUCT(" #__VA_ARGS__ ")"
#define QUIRE_FUNCTION(...) "QUIRE_FUNCTION(" #__VA_ARGS__ ")"
QUIRE_ONCE const char* quire_abi() {
    return
#include "common/abi.h"
        ;
}
#undef QUIRE_STRUCT
#undef QUIRE_FUNCTION

// The bytes of each of its structures.
#define QUIRE_STRUCT(name, ...) int64_t(sizeof(name)),
#define QUIRE_FUNCTION(...)
QUIRE_ONCE const int64_t* quire_struct_sizes() {
    static const int64_t sizes[] = {
#include "common/abi.h"
    };
    return sizes;
}
#endif
