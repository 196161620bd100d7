// What the drivers share: random numbers, memory of the exact size, and a program of as many
// cases as it is told.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

inline int64_t below(int64_t n) { return rand() % n; }

template <class T>
T* zeros(int64_t count) {
    T* place = (T*)malloc(size_t(count) * sizeof(T));
    memset((void*)place, 0, size_t(count) * sizeof(T));
    return place;
}

// Random bytes.
template <class T>
T* fresh(int64_t count) {
    T* place = (T*)malloc(size_t(count) * sizeof(T));
    char* bytes = (char*)place;
    for (int64_t i = 0; i < count * int64_t(sizeof(T)); i++) bytes[i] = char(below(64));
    return place;
}

template <size_t N>
void give_back(const void* const (&taken)[N]) {
    for (const void* each : taken) free((void*)each);
}

// A case: the driver's own.
void run_one();

}  // namespace

int main(int, char** words) {
#if defined(__AMX_TILE__)
    if (syscall(SYS_arch_prctl, 0x1023, 18)) abort();  // what cpu.cpp asks for
#endif
    for (int i = 0; i < atoi(words[1]); i++) {
        srand(unsigned(i));
        run_one();
    }
    puts("clean");
}
