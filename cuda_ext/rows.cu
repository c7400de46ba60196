// Rows moved, added and zeroed by index: load, pull, push, gradient compaction, gather and scatter.
//
// All: one group of lanes per row, 16 bytes per lane where the rows are aligned; ROWS_AT_ONCE independent rows in
// flight per group, which hides the latency of the host link with few blocks.
#include "shared.cuh"

#define ROWS_AT_ONCE 4

// The rows k, k + group_step(), ... of an index (null: the rows in order). Rows past the end repeat the last
// one, so that the loads of the index need no branch and go out together; ``live`` tells them apart.
__device__ __forceinline__ void find_rows(const int* index, int64 k, int64 count, unsigned (&found)[ROWS_AT_ONCE]) {
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
        const int64 row = k + i * group_step();
        found[i] = (unsigned)(row < count ? row : count - 1);
    }
    if (index) {
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) found[i] = index[found[i]];
    }
}
__device__ __forceinline__ bool live(int64 k, int i, int64 count) { return k + i * group_step() < count; }

// Columns by which a row start lies past a 128-byte line. Lanes begin that much earlier, so that every warp-wide
// access to a long row stays within whole lines: over the host link a line is one request.
template <int N, class T>
__device__ __forceinline__ int past_line(const T* row, int64 width) {
    const int64 bytes = N * sizeof(T);
    if (width * (int64)sizeof(T) <= blockDim.x * bytes) return 0;  // one access per row: nothing to gain
    return (int)((uint64)row % 128 / bytes) * N;
}

// A bfloat16, which the host may have rows in: the upper half of a float, rounded to even; a NaN stays one.
struct Half {
    unsigned short bits;
};
template <class To, class From>
__device__ __forceinline__ To as(From value) {
    if constexpr (sizeof(To) > sizeof(From)) {
        return __uint_as_float((unsigned)value.bits << 16);
    } else if constexpr (sizeof(To) < sizeof(From)) {
        const unsigned bits = __float_as_uint(value);
        if (value != value) return To{0x7FC0};
        return To{(unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
    } else {
        return value;
    }
}

// dst[dst_index[k]] = src[src_index[k]], perhaps in other numbers
template <class T, class To, int N>
__device__ __forceinline__ void copy_rows(const T* __restrict__ src, const int* __restrict__ src_index,
                                          To* __restrict__ dst, const int* __restrict__ dst_index, int64 src_stride,
                                          int64 dst_stride, int64 count, int64 width) {
    for (int64 k = first_group(); k < count; k += ROWS_AT_ONCE * group_step()) {
        unsigned row[ROWS_AT_ONCE], into[ROWS_AT_ONCE];
        int64 from[ROWS_AT_ONCE], to[ROWS_AT_ONCE], past[ROWS_AT_ONCE], longest = 0;
        find_rows(src_index, k, count, row);
        find_rows(dst_index, k, count, into);
#pragma unroll
        for (int i = 0; i < ROWS_AT_ONCE; i++) {
            past[i] = past_line<N>(src + row[i] * src_stride, width);
            if (past[i] > longest) longest = past[i];
            from[i] = row[i] * src_stride - past[i];
            to[i] = into[i] * dst_stride - past[i];
        }
        for (int64 f = threadIdx.x * N; f < longest + width; f += blockDim.x * N) {
            Lane<T, N> value[ROWS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                if (live(k, i, count) && f >= past[i] && f < past[i] + width) value[i] = load<N>(src + from[i] + f);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                if (live(k, i, count) && f >= past[i] && f < past[i] + width) {
                    Lane<To, N> given;
#pragma unroll
                    for (int n = 0; n < N; n++) given.at[n] = as<To>(value[i].at[n]);
                    store_some<N>(dst + to[i] + f, given, past[i] + width - f, true);
                }
        }
    }
}

// dst[dst_index[k]] += src[src_index[k]]. Atomic forms have one element per lane: a warp's atomics on adjacent
// elements go out as one request.
template <class T, int N, Add HOW>
__device__ __forceinline__ void add_rows(const T* __restrict__ src, const int* __restrict__ src_index,
                                         T* __restrict__ dst, const int* __restrict__ dst_index, int64 src_stride,
                                         int64 dst_stride, int64 count, int64 width) {
    for (int64 k = first_group(); k < count; k += ROWS_AT_ONCE * group_step()) {
        unsigned from[ROWS_AT_ONCE], to[ROWS_AT_ONCE];
        find_rows(src_index, k, count, from);
        find_rows(dst_index, k, count, to);
        for (int64 f = threadIdx.x * N; f < width; f += blockDim.x * N) {
            Lane<T, N> value[ROWS_AT_ONCE], sum[ROWS_AT_ONCE];
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++) {
                if (!live(k, i, count)) continue;
                value[i] = load<N>(src + from[i] * src_stride + f);
                if constexpr (HOW == PLAIN) sum[i] = load<N>(dst + to[i] * dst_stride + f);
            }
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++) {
                if (!live(k, i, count)) continue;
                if constexpr (HOW == PLAIN) {
#pragma unroll
                    for (int n = 0; n < N; n++) sum[i].at[n] += value[i].at[n];
                    store_some<N>(dst + to[i] * dst_stride + f, sum[i], width - f, true);
                } else {
#pragma unroll
                    for (int n = 0; n < N; n++) add<HOW>(dst + to[i] * dst_stride + f + n, value[i].at[n]);
                }
            }
        }
    }
}

// dst[dst_index[k]] = 0
template <class T, int N>
__device__ __forceinline__ void zero_rows(T* __restrict__ dst, const int* __restrict__ dst_index, int64 dst_stride,
                                          int64 count, int64 width) {
    const Lane<T, N> zero = {};
    for (int64 k = first_group(); k < count; k += group_step())
        for (int64 f = threadIdx.x * N; f < width; f += blockDim.x * N)
            store_some<N>(dst + (dst_index ? (int64)dst_index[k] : k) * dst_stride + f, zero, width - f, true);
}

#define COPY_ROWS(name, T, To, N)                                                                                  \
    KERNEL(name,                                                                                                   \
           (const T* src, const int* src_index, To* dst, const int* dst_index, int64 src_stride, int64 dst_stride, \
            int64 count, int64 width),                                                                             \
           (copy_rows<T, To, N>(src, src_index, dst, dst_index, src_stride, dst_stride, count, width)))
COPY_ROWS(copy_rows_f32x4, float, float, 4)
COPY_ROWS(copy_rows_f32x1, float, float, 1)
COPY_ROWS(copy_rows_f64x2, double, double, 2)
COPY_ROWS(copy_rows_f64x1, double, double, 1)
COPY_ROWS(copy_rows_bf16_f32x4, Half, float, 4)
COPY_ROWS(copy_rows_bf16_f32x1, Half, float, 1)
COPY_ROWS(copy_rows_f32_bf16x4, float, Half, 4)
COPY_ROWS(copy_rows_f32_bf16x1, float, Half, 1)
COPY_ROWS(copy_rows_bf16x4, Half, Half, 4)
COPY_ROWS(copy_rows_bf16x1, Half, Half, 1)

#define ADD_ROWS(name, T, N, HOW)                                                                                  \
    KERNEL(name,                                                                                                   \
           (const T* src, const int* src_index, T* dst, const int* dst_index, int64 src_stride, int64 dst_stride,  \
            int64 count, int64 width),                                                                             \
           (add_rows<T, N, HOW>(src, src_index, dst, dst_index, src_stride, dst_stride, count, width)))
ADD_ROWS(add_rows_f32x4, float, 4, PLAIN)
ADD_ROWS(add_rows_f32x1, float, 1, PLAIN)
ADD_ROWS(add_rows_f64x2, double, 2, PLAIN)
ADD_ROWS(add_rows_f64x1, double, 1, PLAIN)
ADD_ROWS(add_rows_atomic_f32x1, float, 1, ATOMIC)
ADD_ROWS(add_rows_atomic_f64x1, double, 1, ATOMIC)
ADD_ROWS(add_rows_system_f32x1, float, 1, SYSTEM)
ADD_ROWS(add_rows_system_f64x1, double, 1, SYSTEM)

#define ZERO_ROWS(name, T, N)                                                                 \
    KERNEL(name, (T * dst, const int* dst_index, int64 dst_stride, int64 count, int64 width), \
           (zero_rows<T, N>(dst, dst_index, dst_stride, count, width)))
ZERO_ROWS(zero_rows_f32x4, float, 4)
ZERO_ROWS(zero_rows_f32x1, float, 1)
ZERO_ROWS(zero_rows_f64x2, double, 2)
ZERO_ROWS(zero_rows_f64x1, double, 1)
