// Gated sums over in-edges and their gradients; twins of hongtu.kernels.attention.
//
// A row of a source is [query | value], 2 F columns. All: a group per destination, lanes over columns, as csc_aggregate;
// the destination's key stays in registers.
#include "shared.cuh"

template <class T>
__device__ __forceinline__ T sigmoid(T x) {
    return T(1) / (T(1) + exp(-x));
}

// Lanes of a source: its query, and the two that its value lies in, which begins ``past`` elements into the first.
template <class T, int N>
struct QueryValue {
    Lane<T, N> query, first, second;

    __device__ __forceinline__ T value(int n, int past) const {
        T found = first.at[n];
#pragma unroll
        for (int p = 1; p < N; p++)
            if (p == past) found = n + p < N ? first.at[(n + p) % N] : second.at[(n + p) % N];
        return found;
    }
};

// out[d] = sum over in-edges of sigmoid(key[d] + query) * value; with a gradient, that of the keys:
// grad[d] * sum of gate * (1 - gate) * value. Where F is no multiple of a lane, values are not aligned: a lane takes the
// aligned ones that its value begins and ends in.
template <class T, int N, bool GRADIENT>
__device__ __forceinline__ void gated_sum(const int64* __restrict__ indptr, const int* __restrict__ local_source,
                                          const T* __restrict__ key, const T* __restrict__ rows,
                                          const T* __restrict__ grad, T* __restrict__ out, int64 key_stride,
                                          int64 rows_stride, int64 grad_stride, int64 out_stride, int64 num_dst,
                                          int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<N>(), left = width - f;
    if (f >= width) return;
    const int past = (int)width % N;
    const bool two = past && left > N - past;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const Lane<T, N> own = load_some<N>(key + range.dst * key_stride + f, left, lined_up<N>(key, key_stride));
        Lane<T, N> sum = {};
        over_edges<QueryValue<T, N>, EDGES_AT_ONCE / 2>(
            range, local_source, nullptr,
            [&](int64, int64 source) {
                const T* row = rows + source * rows_stride + f;
                QueryValue<T, N> found = {load<N>(row), load<N>(row + width - past), {}};
                if (two) found.second = load<N>(row + width - past + N);
                return found;
            },
            [&](const QueryValue<T, N>& row) {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const T gate = sigmoid(own.at[n] + row.query.at[n]);
                    sum.at[n] += (GRADIENT ? gate * (T(1) - gate) : gate) * row.value(n, past);
                }
            });
        if constexpr (GRADIENT) {
            const bool whole = lined_up<N>(grad, grad_stride);
            const Lane<T, N> change = load_some<N>(grad + range.dst * grad_stride + f, left, whole);
#pragma unroll
            for (int n = 0; n < N; n++) sum.at[n] *= change.at[n];
        }
        put<N>(out + range.dst * out_stride + f, sum, left, lined_up<N>(out, out_stride), !hubs);
    }
}

template <class T>
struct SourceRow {
    int source;
    T query, value;
};

// Adds the gradient of the source rows, both halves, by atomics on adjacent elements.
template <class T>
__device__ __forceinline__ void gated_sum_transpose(const int64* __restrict__ indptr,
                                                    const int* __restrict__ local_source, const T* __restrict__ key,
                                                    const T* __restrict__ rows, const T* __restrict__ grad,
                                                    T* __restrict__ out, int64 key_stride, int64 rows_stride,
                                                    int64 grad_stride, int64 out_stride, int64 num_dst,
                                                    int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<1>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const T own = key[range.dst * key_stride + f], change = grad[range.dst * grad_stride + f];
        over_edges<SourceRow<T>, EDGES_AT_ONCE, int>(
            range, local_source, nullptr,
            [&](int64, int source) {
                const T* row = rows + source * rows_stride + f;
                return SourceRow<T>{source, row[0], row[width]};
            },
            [&](const SourceRow<T>& row) {
                const T gate = sigmoid(own + row.query);
                T* to = out + row.source * out_stride + f;
                add<ATOMIC>(to, change * gate * (T(1) - gate) * row.value);
                add<ATOMIC>(to + width, change * gate);
            });
    }
}

#define GATED(type, T, N)                                                                                            \
    KERNEL(gated_sum_##type##x##N,                                                                                   \
           (const int64* indptr, const int* local_source, const T* key, const T* rows, T* out, int64 key_stride,     \
            int64 rows_stride, int64 out_stride, int64 num_dst, int64 num_edges, int64 width, int64 hubs),           \
           (gated_sum<T, N, false>(indptr, local_source, key, rows, nullptr, out, key_stride, rows_stride, 0,        \
                                   out_stride, num_dst, num_edges, width, hubs)))                                    \
    KERNEL(gated_sum_key_gradient_##type##x##N,                                                                      \
           (const int64* indptr, const int* local_source, const T* key, const T* rows, const T* grad, T* out,        \
            int64 key_stride, int64 rows_stride, int64 grad_stride, int64 out_stride, int64 num_dst,                 \
            int64 num_edges, int64 width, int64 hubs),                                                               \
           (gated_sum<T, N, true>(indptr, local_source, key, rows, grad, out, key_stride, rows_stride, grad_stride,  \
                                  out_stride, num_dst, num_edges, width, hubs)))
GATED(f32, float, 4)
GATED(f32, float, 1)
GATED(f64, double, 2)
GATED(f64, double, 1)

#define GATED_TRANSPOSE(type, T)                                                                                     \
    KERNEL(gated_sum_transpose_##type##x1,                                                                           \
           (const int64* indptr, const int* local_source, const T* key, const T* rows, const T* grad, T* out,        \
            int64 key_stride, int64 rows_stride, int64 grad_stride, int64 out_stride, int64 num_dst,                 \
            int64 num_edges, int64 width, int64 hubs),                                                               \
           (gated_sum_transpose<T>(indptr, local_source, key, rows, grad, out, key_stride, rows_stride, grad_stride, \
                                   out_stride, num_dst, num_edges, width, hubs)))
GATED_TRANSPOSE(f32, float)
GATED_TRANSPOSE(f64, double)
