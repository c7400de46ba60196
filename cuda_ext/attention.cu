// Weighted sums of heads over in-edges and their gradients; twins of hongtu.kernels.attention.
//
// A row is H heads of K channels; rows of sources may have further columns (``stride`` of them in all), not read.
#include "shared.cuh"

// out[d, h] = sum over in-edges e of alpha[e, h] * rows[source of e, h].
// Like csc_aggregate: a group per destination, lanes over columns; the lanes of a head read the same alpha.
template <class T, int N>
__device__ __forceinline__ void attend(const int64* __restrict__ indptr, const int* __restrict__ local_source,
                                       const T* __restrict__ alpha, const T* __restrict__ rows, T* __restrict__ out,
                                       int64 stride, int64 heads, int64 num_dst, int64 num_edges, int64 width,
                                       int64 hubs) {
    const int64 f = column<N>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const int64 h = (int)f / (int)(width / heads);
        Lane<T, N> sum = {};
        over_edges<Message<T, N>, EDGES_AT_ONCE * sizeof(float) / sizeof(T), int>(
            range, local_source, nullptr,
            [&](int64 e, int source) {
                return Message<T, N>{alpha[e * heads + h], load<N>(rows + source * stride + f)};
            },
            [&](const Message<T, N>& message) { add_message(sum, message); });
        put<N>(out + range.dst * width + f, sum, !hubs);
    }
}

// out[source of e, h] += alpha[e, h] * grad[d, h]. Like csc_aggregate_transpose: atomics on adjacent elements.
template <class T>
__device__ __forceinline__ void attend_transpose(const int64* __restrict__ indptr,
                                                 const int* __restrict__ local_source, const T* __restrict__ alpha,
                                                 const T* __restrict__ grad, T* __restrict__ out, int64 stride,
                                                 int64 heads, int64 num_dst, int64 num_edges, int64 width,
                                                 int64 hubs) {
    const int64 f = column<1>();
    if (f >= width) return;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();) {
        const int64 h = (int)f / (int)(width / heads);
        const T share = grad[range.dst * width + f];
        over_edges<Change<T>, EDGES_AT_ONCE * sizeof(float) / sizeof(T), int>(
            range, local_source, nullptr,
            [&](int64 e, int source) {
                return Change<T>{out + source * stride + f, alpha[e * heads + h] * share};
            },
            [&](const Change<T>& change) { add<ATOMIC>(change.to, change.value); });
    }
}

// out[e, h] = <rows[source of e, h], grad[d, h]>. A group per destination; as many of its lanes as the K channels of a
// head take, 16 bytes each, share one (edge, head) pair and add up what they have, so that adjacent lanes read adjacent
// memory.
template <class T, int N>
__device__ __forceinline__ void attend_alpha_gradient(const int64* __restrict__ indptr,
                                                      const int* __restrict__ local_source,
                                                      const T* __restrict__ rows, const T* __restrict__ grad,
                                                      T* __restrict__ out, int64 stride, int64 heads, int64 num_dst,
                                                      int64 num_edges, int64 width, int64 hubs) {
    const int64 channels = width / heads;
    int lanes = 1;
    while (lanes < (int)blockDim.x && lanes * N < channels) lanes *= 2;
    const int lane = threadIdx.x % lanes, at_once = blockDim.x / lanes;
    for (Ranges range(indptr, num_dst, num_edges, hubs); range.next();)
        for (int64 p = range.begin * heads; p < range.end * heads; p += at_once) {
            const int64 pair = p + threadIdx.x / lanes;
            T total = 0;
            if (pair < range.end * heads) {
                const int64 first = pair % heads * channels;
                const T* row = rows + local_source[pair / heads] * stride + first;
                const T* change = grad + range.dst * width + first;
#pragma unroll 2
                for (int64 k = lane * N; k < channels; k += lanes * N) {
                    const Lane<T, N> a = load<N>(row + k), b = load<N>(change + k);
#pragma unroll
                    for (int n = 0; n < N; n++) total += a.at[n] * b.at[n];
                }
            }
            total = sum_over_lanes(total, lanes);
            if (lane == 0 && pair < range.end * heads) out[pair] = total;
        }
}

#define ATTEND(type, T, N)                                                                                           \
    KERNEL(attend_##type##x##N,                                                                                      \
           (const int64* indptr, const int* local_source, const T* alpha, const T* rows, T* out, int64 stride,       \
            int64 heads, int64 num_dst, int64 num_edges, int64 width, int64 hubs),                                   \
           (attend<T, N>(indptr, local_source, alpha, rows, out, stride, heads, num_dst, num_edges, width, hubs)))   \
    WARP_KERNEL(attend_alpha_gradient_##type##x##N,                                                                  \
           (const int64* indptr, const int* local_source, const T* rows, const T* grad, T* out, int64 stride,        \
            int64 heads, int64 num_dst, int64 num_edges, int64 width, int64 hubs),                                   \
           (attend_alpha_gradient<T, N>(indptr, local_source, rows, grad, out, stride, heads, num_dst, num_edges,    \
                                        width, hubs)))
ATTEND(f32, float, 4)
ATTEND(f32, float, 1)
ATTEND(f64, double, 2)
ATTEND(f64, double, 1)

#define ATTEND_TRANSPOSE(type, T)                                                                                    \
    KERNEL(attend_transpose_##type##x1,                                                                              \
           (const int64* indptr, const int* local_source, const T* alpha, const T* grad, T* out, int64 stride,       \
            int64 heads, int64 num_dst, int64 num_edges, int64 width, int64 hubs),                                   \
           (attend_transpose<T>(indptr, local_source, alpha, grad, out, stride, heads, num_dst, num_edges, width,    \
                                hubs)))
ATTEND_TRANSPOSE(f32, float)
ATTEND_TRANSPOSE(f64, double)
