// Sums over the in-edges of destinations and their transposes; twins of hongtu.kernels.sums.
//
// All: one group of lanes per destination, lanes over columns (16 bytes each where the rows are aligned),
// EDGES_AT_ONCE row loads in flight per lane, columns beyond 32 lanes in further blocks (gridDim.y); hubs are cut into
// slices by a second launch (see Ranges). Sums of hubs and all transposes are added by atomics, in no fixed order.
#include "shared.cuh"

// out[d] = sum over in-edges e of weight[e] * rows[slot_of_source[local_source[e]]], over the in-edge count if mean.
template <class T, int N>
__device__ __forceinline__ void csc_aggregate(const int64* __restrict__ indptr, const int* __restrict__ local_source,
                                              const int* __restrict__ slot_of_source, const T* __restrict__ weight,
                                              int64 mean, const T* __restrict__ rows, T* __restrict__ out,
                                              int64 rows_stride, int64 out_stride, int64 num_dst, int64 num_edges,
                                              int64 width, int64 hubs) {
    const int64 f = column<N>();
    if (f >= width) return;
    const bool whole = lined_up<N>(out, out_stride);
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        Lane<T, N> sum = {};
        over_edges<Message<T, N>, EDGES_AT_ONCE>(
            range, local_source, slot_of_source,
            [&](int64 e, int64 slot) {
                return Message<T, N>{weight ? weight[e] : T(1), load<N>(rows + slot * rows_stride + f)};
            },
            [&](const Message<T, N>& message) { add_message(sum, message); });
        if (mean && range.degree > 0) {
#pragma unroll
            for (int n = 0; n < N; n++) sum.at[n] /= T(range.degree);
        }
        put<N>(out + range.dst * out_stride + f, sum, width - f, whole, !hubs);
    }
}

// out[slot of the source of e] += coefficient of e * grad[destination of e]. One element per lane: the atomics of a
// warp fall on adjacent elements.
template <class T>
__device__ __forceinline__ void csc_aggregate_transpose(const int64* __restrict__ indptr,
                                                        const int* __restrict__ local_source,
                                                        const int* __restrict__ slot_of_source,
                                                        const T* __restrict__ weight, int64 mean,
                                                        const T* __restrict__ grad, T* __restrict__ out,
                                                        int64 grad_stride, int64 out_stride, int64 num_dst,
                                                        int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<1>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        T share = grad[range.dst * grad_stride + f];
        if (mean && range.degree > 0) share /= T(range.degree);
        over_edges<Change<T>, EDGES_AT_ONCE>(
            range, local_source, slot_of_source,
            [&](int64 e, int64 slot) {
                return Change<T>{out + slot * out_stride + f, weight ? weight[e] * share : share};
            },
            [&](const Change<T>& change) { add<ATOMIC>(change.to, change.value); });
    }
}

// out[d] = sum of x[e] over the in-edges e of d
template <class T, int N>
__device__ __forceinline__ void segment_sum(const int64* __restrict__ indptr, const T* __restrict__ x,
                                            T* __restrict__ out, int64 x_stride, int64 out_stride, int64 num_dst,
                                            int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<N>();
    if (f >= width) return;
    const bool whole = lined_up<N>(out, out_stride);
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        Lane<T, N> sum = {};
        over_edges<Message<T, N>, EDGES_AT_ONCE>(
            range, nullptr, nullptr,
            [&](int64 e, int64) {
                return Message<T, N>{T(1), load<N>(x + e * x_stride + f)};
            },
            [&](const Message<T, N>& message) { add_message(sum, message); });
        put<N>(out + range.dst * out_stride + f, sum, width - f, whole, !hubs);
    }
}

// out[e] = x[destination of e]
template <class T, int N>
__device__ __forceinline__ void expand_rows(const int64* __restrict__ indptr, const T* __restrict__ x,
                                            T* __restrict__ out, int64 x_stride, int64 out_stride, int64 num_dst,
                                            int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<N>(), left = width - f;
    if (f >= width) return;
    const bool whole = lined_up<N>(x, x_stride);
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const Lane<T, N> value = load_some<N>(x + range.dst * x_stride + f, left, whole);
        for (int64 e = range.begin; e < range.end; e++) store_some<N>(out + e * out_stride + f, value, left, true);
    }
}

#define CSC(type, T, N)                                                                                              \
    KERNEL(csc_aggregate_##type##x##N,                                                                               \
           (const int64* indptr, const int* local_source, const int* slot_of_source, const T* weight, int64 mean,    \
            const T* rows, T* out, int64 rows_stride, int64 out_stride, int64 num_dst, int64 num_edges, int64 width, \
            int64 hubs),                                                                                             \
           (csc_aggregate<T, N>(indptr, local_source, slot_of_source, weight, mean, rows, out, rows_stride,          \
                                out_stride, num_dst, num_edges, width, hubs)))                                       \
    KERNEL(segment_sum_##type##x##N,                                                                                 \
           (const int64* indptr, const T* x, T* out, int64 x_stride, int64 out_stride, int64 num_dst,                \
            int64 num_edges, int64 width, int64 hubs),                                                               \
           (segment_sum<T, N>(indptr, x, out, x_stride, out_stride, num_dst, num_edges, width, hubs)))               \
    KERNEL(expand_rows_##type##x##N,                                                                                 \
           (const int64* indptr, const T* x, T* out, int64 x_stride, int64 out_stride, int64 num_dst,                \
            int64 num_edges, int64 width, int64 hubs),                                                               \
           (expand_rows<T, N>(indptr, x, out, x_stride, out_stride, num_dst, num_edges, width, hubs)))
CSC(f32, float, 4)
CSC(f32, float, 1)
CSC(f64, double, 2)
CSC(f64, double, 1)

#define CSC_TRANSPOSE(type, T)                                                                                       \
    KERNEL(csc_aggregate_transpose_##type##x1,                                                                       \
           (const int64* indptr, const int* local_source, const int* slot_of_source, const T* weight, int64 mean,    \
            const T* grad, T* out, int64 grad_stride, int64 out_stride, int64 num_dst, int64 num_edges, int64 width, \
            int64 hubs),                                                                                             \
           (csc_aggregate_transpose<T>(indptr, local_source, slot_of_source, weight, mean, grad, out, grad_stride,   \
                                       out_stride, num_dst, num_edges, width, hubs)))
CSC_TRANSPOSE(f32, float)
CSC_TRANSPOSE(f64, double)
