// Weighted sums of heads over in-edges and their gradients; twins of hongtu.kernels.attention.
//
// A row is H heads of K channels; rows of sources may have further columns, which are not used.
#include "shared.cuh"

// A lane of a row, with what its first elements are multiplied with, and those of the next head.
template <class T, int N>
struct Heads {
    T weight, next;
    Lane<T, N> row;
};

// out[d, h] = sum over in-edges e of alpha[e, h] * rows[source of e, h].
// Like csc_aggregate: a group per destination, lanes over columns; the lanes of a head read the same alpha. A lane may end
// in the next head (2 K >= N).
template <class T, int N>
__device__ __forceinline__ void attend(const int64* __restrict__ indptr, const int* __restrict__ local_source,
                                       const T* __restrict__ alpha, const T* __restrict__ rows, T* __restrict__ out,
                                       int64 rows_stride, int64 out_stride, int64 heads, int64 num_dst,
                                       int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<N>();
    if (f >= width) return;
    const bool whole = lined_up<N>(out, out_stride);
    const int channels = (int)(width / heads), h = (int)f / channels, own = channels - (int)f % channels;
    const bool two = N > 1 && own < N && h + 1 < heads;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        Lane<T, N> sum = {};
        over_edges<Heads<T, N>, EDGES_AT_ONCE * sizeof(float) / sizeof(T), int>(
            range, local_source, nullptr,
            [&](int64 e, int source) {
                const T* share = alpha + e * heads + h;
                return Heads<T, N>{*share, two ? share[1] : T(0), load<N>(rows + source * rows_stride + f)};
            },
            [&](const Heads<T, N>& edge) {
#pragma unroll
                for (int n = 0; n < N; n++) sum.at[n] += (N == 1 || n < own ? edge.weight : edge.next) * edge.row.at[n];
            });
        put<N>(out + range.dst * out_stride + f, sum, width - f, whole, !hubs);
    }
}

// out[source of e, h] += alpha[e, h] * grad[d, h]. Like csc_aggregate_transpose: atomics on adjacent elements.
template <class T>
__device__ __forceinline__ void attend_transpose(const int64* __restrict__ indptr,
                                                 const int* __restrict__ local_source, const T* __restrict__ alpha,
                                                 const T* __restrict__ grad, T* __restrict__ out,
                                                 int64 grad_stride, int64 out_stride, int64 heads, int64 num_dst,
                                                 int64 num_edges, int64 width, int64 hubs) {
    const int64 f = column<1>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const int64 h = (int)f / (int)(width / heads);
        const T share = grad[range.dst * grad_stride + f];
        over_edges<Change<T>, EDGES_AT_ONCE * sizeof(float) / sizeof(T), int>(
            range, local_source, nullptr,
            [&](int64 e, int source) {
                return Change<T>{out + source * out_stride + f, alpha[e * heads + h] * share};
            },
            [&](const Change<T>& change) { add<ATOMIC>(change.to, change.value); });
    }
}

// out[e, h] = <rows[source of e, h], grad[d, h]>. A group per destination; as many of its lanes as the K channels of a
// head take, 16 bytes each, share one (edge, head) pair and add up what they have, so that adjacent lanes read adjacent
// memory. Lanes begin where they are aligned, before a head that does not; what they have of others, and of a row's
// padding, is no part of the sum.
template <class T, int N>
__device__ __forceinline__ void attend_alpha_gradient(const int64* __restrict__ indptr,
                                                      const int* __restrict__ local_source,
                                                      const T* __restrict__ rows, const T* __restrict__ grad,
                                                      T* __restrict__ out, int64 rows_stride, int64 grad_stride,
                                                      int64 heads, int64 num_dst, int64 num_edges, int64 width,
                                                      int64 hubs) {
    const int64 channels = width / heads;
    int lanes = 1;
    while (lanes < (int)blockDim.x && lanes * N < channels) lanes *= 2;
    const int lane = threadIdx.x % lanes, at_once = blockDim.x / lanes;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();)
        for (int64 p = range.begin * heads; p < range.end * heads; p += at_once) {
            const int64 pair = p + threadIdx.x / lanes;
            T total = 0;
            if (pair < range.end * heads) {
                const int64 first = pair % heads * channels, past = first % N;
                const T* row = rows + local_source[pair / heads] * rows_stride + first;
                const T* change = grad + range.dst * grad_stride + first;
#pragma unroll 2
                for (int64 k = lane * N - past; k < channels; k += lanes * N) {
                    const Lane<T, N> a = load<N>(row + k), b = load<N>(change + k);
#pragma unroll
                    for (int n = 0; n < N; n++)
                        if (k + n >= 0 && k + n < channels) total += a.at[n] * b.at[n];
                }
            }
            total = sum_over_lanes(total, lanes);
            if (lane == 0 && pair < range.end * heads) out[pair] = total;
        }
}

#define ATTEND(type, T, N)                                                                                           \
    KERNEL(attend_##type##x##N,                                                                                      \
           (const int64* indptr, const int* local_source, const T* alpha, const T* rows, T* out, int64 rows_stride,  \
            int64 out_stride, int64 heads, int64 num_dst, int64 num_edges, int64 width, int64 hubs),                 \
           (attend<T, N>(indptr, local_source, alpha, rows, out, rows_stride, out_stride, heads, num_dst, num_edges, \
                         width, hubs)))                                                                              \
    WARP_KERNEL(attend_alpha_gradient_##type##x##N,                                                                  \
           (const int64* indptr, const int* local_source, const T* rows, const T* grad, T* out, int64 rows_stride,   \
            int64 grad_stride, int64 heads, int64 num_dst, int64 num_edges, int64 width, int64 hubs),                \
           (attend_alpha_gradient<T, N>(indptr, local_source, rows, grad, out, rows_stride, grad_stride, heads,      \
                                        num_dst, num_edges, width, hubs)))
ATTEND(f32, float, 4)
ATTEND(f32, float, 1)
ATTEND(f64, double, 2)
ATTEND(f64, double, 1)

#define ATTEND_TRANSPOSE(type, T)                                                                                    \
    KERNEL(attend_transpose_##type##x1,                                                                              \
           (const int64* indptr, const int* local_source, const T* alpha, const T* grad, T* out, int64 grad_stride,  \
            int64 out_stride, int64 heads, int64 num_dst, int64 num_edges, int64 width, int64 hubs),                 \
           (attend_transpose<T>(indptr, local_source, alpha, grad, out, grad_stride, out_stride, heads, num_dst,     \
                                num_edges, width, hubs)))
ATTEND_TRANSPOSE(f32, float)
ATTEND_TRANSPOSE(f64, double)
