// What the threads of a kernel do to memory, written down. Compiled with -fsanitize=thread, code calls a function at every
// load and store; these here take the place of ThreadSanitizer's. Includes the shim: `g++ -x c++ -include trace.cuh`.
#pragma once
#include <cstdint>
#include <cstdlib>

#define UNTRACED __attribute__((no_sanitize("thread")))
#define NOTE_ATOMIC(pointer) note(pointer, sizeof(*(pointer)), ADDS, __builtin_return_address(0))

enum Kind { READS, WRITES, ADDS };
static void note(const void* at, unsigned bytes, Kind kind, const void* by);

#include "cpu_shim.cuh"

#include <pthread.h>

struct Access {
    std::uint64_t address, by;  // by: where the code is
    std::uint32_t thread;       // of the launch
    std::uint16_t bytes, kind;
};
static Access* accesses;
static std::uint64_t count, room;

// The stack of the thread that runs all others, one behind another.
UNTRACED static bool on_stack(std::uint64_t address) {
    static std::uint64_t begin, end;
    if (!end) {
        pthread_attr_t attributes;
        void* low;
        std::size_t size;
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &low, &size);
        pthread_attr_destroy(&attributes);
        begin = (std::uint64_t)low;
        end = begin + size;
    }
    return begin <= address && address < end;
}

UNTRACED static bool in(const void* memory, std::size_t size, std::uint64_t address) {
    return (std::uint64_t)memory <= address && address < (std::uint64_t)memory + size;
}

// Whether memory is the shim's own.
UNTRACED static bool own(std::uint64_t address) {
    return on_stack(address) || in(&lanes_of_group, sizeof(Lanes), address) || in(&threadIdx, sizeof(Dim), address) ||
           in(&blockIdx, sizeof(Dim), address) || in(&blockDim, sizeof(Dim), address) ||
           in(&gridDim, sizeof(Dim), address);
}

UNTRACED static void note(const void* at, unsigned bytes, Kind kind, const void* by) {
    const std::uint64_t address = (std::uint64_t)at;
    if (own(address)) return;
    if (count == room) {
        room = room ? 2 * room : 1 << 16;
        accesses = (Access*)std::realloc(accesses, room * sizeof(Access));
    }
    const std::uint32_t block = blockIdx.y * gridDim.x + blockIdx.x;
    const std::uint32_t thread = (block * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    accesses[count++] = {address, (std::uint64_t)by, thread, (std::uint16_t)bytes, (std::uint16_t)kind};
}

extern "C" {
UNTRACED const Access* traced_accesses(std::uint64_t* number) {
    *number = count;
    count = 0;
    return accesses;
}
UNTRACED void __tsan_init() {}
UNTRACED void __tsan_func_entry(void*) {}
UNTRACED void __tsan_func_exit() {}
UNTRACED void __tsan_vptr_update(void**, void*) {}
#define TRACED(bytes)                                                                                             \
    UNTRACED void __tsan_read##bytes(void* at) { note(at, bytes, READS, __builtin_return_address(0)); }           \
    UNTRACED void __tsan_write##bytes(void* at) { note(at, bytes, WRITES, __builtin_return_address(0)); }         \
    UNTRACED void __tsan_unaligned_read##bytes(void* at) { note(at, bytes, READS, __builtin_return_address(0)); } \
    UNTRACED void __tsan_unaligned_write##bytes(void* at) { note(at, bytes, WRITES, __builtin_return_address(0)); }
TRACED(1)
TRACED(2)
TRACED(4)
TRACED(8)
TRACED(16)
UNTRACED void __tsan_read_range(void* at, unsigned long bytes) {
    note(at, (unsigned)bytes, READS, __builtin_return_address(0));
}
UNTRACED void __tsan_write_range(void* at, unsigned long bytes) {
    note(at, (unsigned)bytes, WRITES, __builtin_return_address(0));
}
}
