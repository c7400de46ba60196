// What a .cu file needs to be compiled by g++ and executed on a CPU: `g++ -x c++ -include cpu_shim.cuh`.
//
// A launch runs the threads of all blocks one after another, in ascending or descending order. That is an execution
// CUDA allows for these kernels, since none has a barrier; results must not depend on the order beyond rounding. Of a
// WARP_KERNEL the lanes of a group run in step: each as far as the next exchange of values. An access that a GPU would
// refuse as misaligned, and an exchange that not all lanes of a group come to, end the launch with an error.
#pragma once
#define CPU_SHIM

#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <utility>

#include <ucontext.h>
#ifdef THREADS_AT_ONCE
#include <atomic>
#include <thread>
#include <vector>
#endif

using std::exp;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)

struct Dim {
    unsigned x, y, z;
};
static thread_local Dim threadIdx, blockIdx, blockDim, gridDim;

struct Misaligned : std::exception {};
#define CHECK_ALIGNED(pointer, bytes) \
    if ((std::uintptr_t)(pointer) % (bytes)) throw Misaligned()

#ifndef UNTRACED  // whoever traces memory accesses says what is none of them, and that one is atomic
#define UNTRACED
#define NOTE_ATOMIC(pointer)
#endif

// A value becomes what ``after`` makes of it; returns what it was.
template <class T, class After>
UNTRACED inline T atomically(T* to, After after) {
    NOTE_ATOMIC(to);
#ifdef THREADS_AT_ONCE  // of the processor; else they run one after another
    T before, then;
    __atomic_load(to, &before, __ATOMIC_RELAXED);
    do then = after(before);
    while (!__atomic_compare_exchange(to, &before, &then, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
#else
    const T before = *to;
    *to = after(before);
    return before;
#endif
}
template <class T>
UNTRACED inline T atomicAdd(T* to, T value) {
    return atomically(to, [=](T before) UNTRACED { return before + value; });
}
template <class T>
UNTRACED inline T atomicAdd_system(T* to, T value) {
    return atomicAdd(to, value);
}
template <class T>
UNTRACED inline T atomicMax(T* to, T value) {
    return atomically(to, [=](T before) UNTRACED { return value > before ? value : before; });
}
template <class T>
UNTRACED inline T atomicMin(T* to, T value) {
    return atomically(to, [=](T before) UNTRACED { return value < before ? value : before; });
}

template <class To, class From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline int __float_as_int(float value) { return same_bits<int>(value); }
inline long long __double_as_longlong(double value) { return same_bits<long long>(value); }
inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }

template <class T>
inline T argument(long long bits) {
    static_assert(sizeof(T) == 8, "every parameter of a kernel takes 8 bytes");
    return same_bits<T>(bits);
}

template <class... T, std::size_t... I>
inline void run_thread(void (*kernel)(T...), const long long* args, std::index_sequence<I...>) {
    kernel(argument<T>(args[I])...);
}

// The lanes of a group, each with a stack of its own.
struct Lanes {
    enum { MOST = 32, STACK = 1 << 16 };
    ucontext_t caller, lane[MOST];
    unsigned running, exchanged[MOST];
    bool done[MOST], misaligned, mistaken;  // mistaken: a mask names other lanes than those of the group
    std::uint64_t value[2][MOST];  // of one exchange and the next, which a lane may come to while others read the last
    void (*body)(void (*kernel)(), const long long* args);
    void (*kernel)();  // what the body takes
    const long long* args;
    alignas(16) char stack[MOST][STACK];
};
static thread_local Lanes lanes_of_group;

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int step) {
    Lanes& group = lanes_of_group;
    const unsigned me = group.running, side = group.exchanged[me]++ % 2;
    const std::uint64_t lanes = ((std::uint64_t(1) << blockDim.x) - 1) << threadIdx.y * blockDim.x % 32;
    group.mistaken |= mask != lanes || (me ^ step) >= blockDim.x;
    std::memcpy(&group.value[side][me], &value, sizeof(T));
    swapcontext(&group.lane[me], &group.caller);
    std::memcpy(&value, &group.value[side][me ^ step], sizeof(T));
    return value;
}

static void run_lane() {
    Lanes& group = lanes_of_group;
    const unsigned me = group.running;
    try {
        group.body(group.kernel, group.args);
    } catch (const Misaligned&) {
        group.misaligned = true;
    }
    group.done[me] = true;
    swapcontext(&group.lane[me], &group.caller);
}

// 0: done; 1: misaligned access; 3: some lanes were done where others exchange values, or a mask is wrong.
inline int run_group(int descending) {
    Lanes& group = lanes_of_group;
    group.misaligned = group.mistaken = false;
    for (unsigned x = 0; x < blockDim.x; x++) {
        group.done[x] = false;
        group.exchanged[x] = 0;
        getcontext(&group.lane[x]);
        group.lane[x].uc_stack.ss_sp = group.stack[x];
        group.lane[x].uc_stack.ss_size = Lanes::STACK;
        makecontext(&group.lane[x], run_lane, 0);
    }
    for (;;) {
        unsigned done = 0;
        for (unsigned k = 0; k < blockDim.x; k++) {
            group.running = threadIdx.x = descending ? blockDim.x - 1 - k : k;
            swapcontext(&group.caller, &group.lane[group.running]);
            done += group.done[group.running];
        }
        if (group.misaligned) return 1;
        if (group.mistaken) return 3;
        if (done == blockDim.x) return 0;
        if (done) return 3;
    }
}

static void set_shape(const unsigned* shape) {
    gridDim = {shape[0], shape[1], shape[2]};
    blockDim = {shape[3], shape[4], shape[5]};
}

template <class... T>
static int run_in_step(void (*kernel)(T...), const unsigned* shape, const long long* args, int descending) {
    set_shape(shape);
    lanes_of_group.kernel = (void (*)())kernel;
    lanes_of_group.args = args;
    lanes_of_group.body = [](void (*kernel)(), const long long* args) {
        run_thread((void (*)(T...))kernel, args, std::index_sequence_for<T...>());
    };
    const std::uint64_t groups = (std::uint64_t)gridDim.x * gridDim.y * blockDim.y;
    for (std::uint64_t k = 0; k < groups; k++) {
        const std::uint64_t at = descending ? groups - 1 - k : k, block = at / blockDim.y;
        threadIdx.y = unsigned(at % blockDim.y);
        blockIdx = {unsigned(block % gridDim.x), unsigned(block / gridDim.x), 0};
        if (const int refused = run_group(descending)) return refused;
    }
    return 0;
}

// Threads ``first``, ``first + step``, ... of a launch. 0: done; 1: misaligned access.
template <class... T>
static int run_some(void (*kernel)(T...), const unsigned* shape, const long long* args, int descending,
                    std::uint64_t first, std::uint64_t step) {
    set_shape(shape);
    const std::uint64_t per_block = (std::uint64_t)blockDim.x * blockDim.y * blockDim.z;
    const std::uint64_t threads = per_block * gridDim.x * gridDim.y * gridDim.z;
    try {
        for (std::uint64_t k = first; k < threads; k += step) {
            const std::uint64_t at = descending ? threads - 1 - k : k;
            const std::uint64_t thread = at % per_block, block = at / per_block;
            threadIdx = {unsigned(thread % blockDim.x), unsigned(thread / blockDim.x % blockDim.y),
                         unsigned(thread / blockDim.x / blockDim.y)};
            blockIdx = {unsigned(block % gridDim.x), unsigned(block / gridDim.x % gridDim.y),
                        unsigned(block / gridDim.x / gridDim.y)};
            run_thread(kernel, args, std::index_sequence_for<T...>());
        }
    } catch (const Misaligned&) {
        return 1;
    }
    return 0;
}

template <class... T>
static int run_on_cpu(void (*kernel)(T...), const unsigned* shape, const long long* args, int descending) {
#ifdef THREADS_AT_ONCE
    std::vector<std::thread> at_once;
    std::atomic<int> refused{0};
    for (int k = 0; k < THREADS_AT_ONCE; k++)
        at_once.emplace_back([&, k] {
            if (run_some(kernel, shape, args, descending, k, THREADS_AT_ONCE)) refused = 1;
        });
    for (std::thread& each : at_once) each.join();
    return refused;
#else
    return run_some(kernel, shape, args, descending, 0, 1);
#endif
}

// 2: called with another number of arguments.
#define ON_CPU_BY(run, name)                                                                                      \
    extern "C" int name##_on_cpu(const unsigned* shape, const long long* args, int count, int descending) {       \
        return count_of(name) == count ? run(name, shape, args, descending) : 2;                                  \
    }
#define ON_CPU(name) ON_CPU_BY(run_on_cpu, name)
#define ON_CPU_IN_STEP(name) ON_CPU_BY(run_in_step, name)
template <class... T>
constexpr int count_of(void (*)(T...)) {
    return sizeof...(T);
}
