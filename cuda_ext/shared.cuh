// What the kernels share: lanes of several elements, groups of threads, and ranges of in-edges.
//
// Legend: D destinations, S sources, C rows of a cache, E edges, F features, H heads, K channels per head.
//
// A row begins ``stride`` elements behind the one before, and may end before that: what is between is its padding. Lanes
// may read the padding of their own row, and never write it; the rows that loops over edges and rows move are those whose
// first lanes are aligned, and so all are.
//
// A block is blockDim.x lanes, which take the columns of one row, times blockDim.y rows: a group is the lanes of one
// row. Narrow rows get fewer than 32 lanes, so that a warp serves several rows. No kernel has a barrier or shared memory;
// lanes of a group exchange values in a WARP_KERNEL alone. So the same source also runs on a CPU (cpu_shim.cuh). Every parameter of a kernel takes 8 bytes. Inputs and outputs must not overlap.
#pragma once

typedef long long int64;
typedef unsigned long long uint64;

#ifndef CPU_SHIM
#define CHECK_ALIGNED(pointer, bytes)
#define ON_CPU(name)
#define ON_CPU_IN_STEP(name)
#endif

#define THREADS 256  // per block
#define BLOCKS 4  // or more per multiprocessor, so 64 registers a thread: waiting warps hide each other's latency

// A kernel is a template; KERNEL gives one instance of it a plain name, and ON_CPU makes that callable on a CPU.
#define ON_GPU(name, parameters, call) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name parameters { call; }
#define KERNEL(name, parameters, call) ON_GPU(name, parameters, call) ON_CPU(name)
#define WARP_KERNEL(name, parameters, call) ON_GPU(name, parameters, call) ON_CPU_IN_STEP(name)

// N adjacent elements that one lane moves at once.
template <class T, int N>
struct alignas(sizeof(T) * N) Lane {
    T at[N];
};

template <int N, class T>
__device__ __forceinline__ Lane<T, N> load(const T* from) {
    CHECK_ALIGNED(from, sizeof(Lane<T, N>));
    return *reinterpret_cast<const Lane<T, N>*>(from);
}

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Lane<T, N>& value) {
    CHECK_ALIGNED(to, sizeof(Lane<T, N>));
    *reinterpret_cast<Lane<T, N>*>(to) = value;
}

// How a row is added to another: PLAIN, as loads and stores, where nobody else writes it meanwhile; ATOMIC where threads
// of this device do; SYSTEM where other devices do.
enum Add { PLAIN, ATOMIC, SYSTEM };

template <Add HOW, class T>
__device__ __forceinline__ void add(T* to, T value) {
    static_assert(HOW != PLAIN, "not an atomic form");
    if (HOW == SYSTEM) atomicAdd_system(to, value);
    else atomicAdd(to, value);
}

// Whether lanes of several elements are aligned in all rows.
template <int N, class T>
__device__ __forceinline__ bool lined_up(const T* rows, int64 stride) {
    return (((uint64)rows | (uint64)stride * sizeof(T)) & (sizeof(Lane<T, N>) - 1)) == 0;
}

// A lane of which ``left`` elements or more are in its row, once or twice for a destination: at once where all are and
// it is aligned (``whole``), else one by one.
template <int N, class T>
__device__ __forceinline__ Lane<T, N> load_some(const T* from, int64 left, bool whole) {
    if (N == 1 || (whole && left >= N)) return load<N>(from);
    Lane<T, N> value = {};
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < left) value.at[i] = from[i];
    return value;
}

template <int N, class T>
__device__ __forceinline__ void store_some(T* to, const Lane<T, N>& value, int64 left, bool whole) {
    if (N == 1 || (whole && left >= N)) {
        store<N>(to, value);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (i < left) to[i] = value.at[i];
}

// Overwrites (``alone``: this thread makes the whole sum) or adds a part of it.
template <int N, class T>
__device__ __forceinline__ void put(T* to, const Lane<T, N>& value, int64 left, bool whole, bool alone) {
    if (alone) {
        store_some<N>(to, value, left, whole);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < left) add<ATOMIC>(to + i, value.at[i]);
    }
}

__device__ __forceinline__ int64 first_group() { return (int64)blockIdx.x * blockDim.y + threadIdx.y; }
__device__ __forceinline__ int64 group_step() { return (int64)gridDim.x * blockDim.y; }

// The sum of a value over this lane's aligned set of ``lanes`` lanes, a power of two, of its group; all of them call it,
// and get it. The other groups of a warp may be elsewhere.
template <class T>
__device__ __forceinline__ T sum_over_lanes(T value, int lanes) {
    const unsigned first = threadIdx.y * blockDim.x % 32;
    const unsigned group = (blockDim.x == 32 ? ~0u : (1u << blockDim.x) - 1) << first;
    for (int step = lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(group, value, step);
    return value;
}

// The column of this lane, where columns beyond the lanes of a block are in further blocks (gridDim.y).
template <int N>
__device__ __forceinline__ int64 column() {
    return ((int64)blockIdx.y * blockDim.x + threadIdx.x) * N;
}

// A destination with more in-edges than this is a hub. A launch gives every other destination to one group; a second
// launch (``hubs``) cuts the hubs' edges into slices of this length, one group each, so that one vertex with a million
// in-edges does not keep a single warp busy while the device waits. Needs no degree to be known beforehand.
#define HUB 512
#define EDGES_AT_ONCE 4  // independent row loads in flight per lane

// The last destination whose edges start at or before edge e: it owns e, for e in [indptr[0], indptr[D]).
__device__ __forceinline__ int64 destination_of(const int64* indptr, int64 num_dst, int64 e) {
    int64 low = 0, high = num_dst;
    while (high - low > 1) {
        const int64 middle = (low + high) / 2;
        if (indptr[middle] <= e) low = middle;
        else high = middle;
    }
    return low;
}

// The ranges of in-edges that this thread's group works on: ``while (range.next())`` sets ``dst`` and [begin, end).
// First launch: all destinations, a hub with an empty range. Launch for the hubs: their slices.
struct Ranges {
    const int64 *indptr, num_dst, num_edges;
    const bool hubs;
    int64 item, dst, begin, end, degree;

    __device__ Ranges(const int64* indptr, int64 num_dst, int64 num_edges, int64 hubs)
        : indptr(indptr), num_dst(num_dst), num_edges(num_edges), hubs(hubs != 0), item(first_group() - group_step()) {}

    __device__ __forceinline__ bool is_hub() const { return degree > HUB; }

    __device__ __forceinline__ bool next() {
        item += group_step();
        if (hubs) return next_slice();
        if (item >= num_dst) return false;
        take(item);
        if (is_hub()) end = begin;
        return true;
    }

    // A hub is longer than a slice, so a slice can only touch the hub of its first edge (even items) and that of its
    // last edge (odd items): two searches, no walk over what lies between.
    __device__ __forceinline__ bool next_slice() {
        for (; item < 2 * ((num_edges + HUB - 1) / HUB); item += group_step()) {
            const int64 first = item / 2 * HUB;
            const int64 last = first + HUB < num_edges ? first + HUB : num_edges;
            take(destination_of(indptr, num_dst, item % 2 ? last - 1 : first));
            if (!is_hub() || (item % 2 && begin <= first)) continue;
            if (begin < first) begin = first;
            if (end > last) end = last;
            return true;
        }
        return false;
    }

    __device__ __forceinline__ void take(int64 d) {
        dst = d;
        begin = indptr[d];
        end = indptr[d + 1];
        degree = end - begin;
    }
};

// ``add_row(row)`` for the edges of a range in order, where ``row`` is what ``load_row(e, slot)`` made of the edge and
// the slot of its source (slot_of_source null: the source itself; local_source null: the edge itself, which an ``At`` of
// int does without: numbers of sources take half the registers). In stages, all
// loads before all uses, because a multiprocessor issues in order: whatever waits for a load holds back the next loads.
template <class Row, int AT_ONCE, class At = int64, class LoadRow, class AddRow>
__device__ __forceinline__ void over_edges(const Ranges& range, const int* local_source, const int* slot_of_source,
                                           LoadRow load_row, AddRow add_row) {
#pragma unroll 1
    for (int64 e = range.begin; e < range.end; e += AT_ONCE) {
        At at[AT_ONCE];
        Row row[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int64 edge = e + i < range.end ? e + i : range.end - 1;
            at[i] = sizeof(At) == sizeof(int) ? local_source[edge] : edge;
        }
        if (sizeof(At) != sizeof(int) && local_source) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) at[i] = local_source[at[i]];
        }
        if (slot_of_source) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) at[i] = slot_of_source[at[i]];
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (e + i < range.end) row[i] = load_row(e + i, at[i]);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (e + i < range.end) add_row(row[i]);
    }
}

// What an edge adds to its destination, and how ``over_edges`` sums it up.
template <class T, int N>
struct Message {
    T weight;
    Lane<T, N> row;
};
template <class T, int N>
__device__ __forceinline__ void add_message(Lane<T, N>& sum, const Message<T, N>& message) {
#pragma unroll
    for (int n = 0; n < N; n++) sum.at[n] += message.weight * message.row.at[n];
}

// What a destination adds to the source of an edge.
template <class T>
struct Change {
    T* to;
    T value;
};
