// Gated sums over in-edges and their gradients; twins of hongtu.kernels.attention.
//
// A row of a source is [query | value], 2 F columns. All: a group per destination, lanes over columns, as csc_aggregate;
// the destination's key stays in registers.
#include "shared.cuh"

template <class T>
__device__ __forceinline__ T sigmoid(T x) {
    return T(1) / (T(1) + exp(-x));
}

template <class T, int N>
struct QueryValue {
    Lane<T, N> query, value;
};

// out[d] = sum over in-edges of sigmoid(key[d] + query) * value; with a gradient, that of the keys:
// grad[d] * sum of gate * (1 - gate) * value.
template <class T, int N, bool GRADIENT>
__device__ __forceinline__ void gated_sum(const int64* __restrict__ indptr, const int* __restrict__ local_source,
                                          const T* __restrict__ key, const T* __restrict__ rows,
                                          const T* __restrict__ grad, T* __restrict__ out, int64 num_dst,
                                          int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<N>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const Lane<T, N> own = load<N>(key + range.dst * width + f);
        Lane<T, N> sum = {};
        over_edges<QueryValue<T, N>, EDGES_AT_ONCE / 2>(
            range, local_source, nullptr,
            [&](int64, int64 source) {
                const T* row = rows + source * 2 * width + f;
                return QueryValue<T, N>{load<N>(row), load<N>(row + width)};
            },
            [&](const QueryValue<T, N>& row) {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const T gate = sigmoid(own.at[n] + row.query.at[n]);
                    sum.at[n] += (GRADIENT ? gate * (T(1) - gate) : gate) * row.value.at[n];
                }
            });
        if constexpr (GRADIENT) {
            const Lane<T, N> change = load<N>(grad + range.dst * width + f);
#pragma unroll
            for (int n = 0; n < N; n++) sum.at[n] *= change.at[n];
        }
        put<N>(out + range.dst * width + f, sum, !hubs);
    }
}

template <class T>
struct SourceRow {
    int64 at;  // of the query
    T query, value;
};

// Adds the gradient of the source rows, both halves, by atomics on adjacent elements.
template <class T>
__device__ __forceinline__ void gated_sum_transpose(const int64* __restrict__ indptr,
                                                    const int* __restrict__ local_source, const T* __restrict__ key,
                                                    const T* __restrict__ rows, const T* __restrict__ grad,
                                                    T* __restrict__ out, int64 num_dst, int64 num_edges, int64 width,
                                                    int64 hubs) {
    const int64 f = column<1>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const T own = key[range.dst * width + f], change = grad[range.dst * width + f];
        over_edges<SourceRow<T>, EDGES_AT_ONCE>(
            range, local_source, nullptr,
            [&](int64, int64 source) {
                const int64 query = source * 2 * width + f;
                return SourceRow<T>{query, rows[query], rows[query + width]};
            },
            [&](const SourceRow<T>& row) {
                const T gate = sigmoid(own + row.query);
                add<ATOMIC>(out + row.at, change * gate * (T(1) - gate) * row.value);
                add<ATOMIC>(out + row.at + width, change * gate);
            });
    }
}

#define GATED(type, T, N)                                                                                            \
    KERNEL(gated_sum_##type##x##N,                                                                                   \
           (const int64* indptr, const int* local_source, const T* key, const T* rows, T* out, int64 num_dst,        \
            int64 num_edges, int64 width, int64 hubs),                                                               \
           (gated_sum<T, N, false>(indptr, local_source, key, rows, nullptr, out, num_dst, num_edges, width, hubs))) \
    KERNEL(gated_sum_key_gradient_##type##x##N,                                                                      \
           (const int64* indptr, const int* local_source, const T* key, const T* rows, const T* grad, T* out,        \
            int64 num_dst, int64 num_edges, int64 width, int64 hubs),                                                \
           (gated_sum<T, N, true>(indptr, local_source, key, rows, grad, out, num_dst, num_edges, width, hubs)))
GATED(f32, float, 4)
GATED(f32, float, 1)
GATED(f64, double, 2)
GATED(f64, double, 1)

#define GATED_TRANSPOSE(type, T)                                                                                     \
    KERNEL(gated_sum_transpose_##type##x1,                                                                           \
           (const int64* indptr, const int* local_source, const T* key, const T* rows, const T* grad, T* out,        \
            int64 num_dst, int64 num_edges, int64 width, int64 hubs),                                                \
           (gated_sum_transpose<T>(indptr, local_source, key, rows, grad, out, num_dst, num_edges, width, hubs)))
GATED_TRANSPOSE(f32, float)
GATED_TRANSPOSE(f64, double)
