// Softmax over the in-edges of destinations, and its gradient; twins of hongtu.kernels.attention.
//
// Both: one thread per destination and head, which walks its edges (adjacent threads have adjacent heads, or adjacent
// destinations where there is one head). Hubs take further launches, the stages: per slice a part of a reduction, by
// atomics into [D, H] scratch that stage 0 sets, then what depends on the whole of it.
#include "shared.cuh"

// Comparing the bits: integers order non-negative floats as they are, unsigned ones negative floats in reverse.
__device__ __forceinline__ void atomic_max(float* to, float value) {
    value += 0.0f;  // a negative zero becomes positive
    if (value >= 0) atomicMax((int*)to, (int)__float_as_uint(value));
    else atomicMin((unsigned*)to, __float_as_uint(value));
}
__device__ __forceinline__ void atomic_max(double* to, double value) {
    value += 0.0;
    if (value >= 0) atomicMax((int64*)to, (int64)__double_as_longlong(value));
    else atomicMin((uint64*)to, (uint64)__double_as_longlong(value));
}

// out[e] = share of e among the edges of its destination that are not masked, and its extra logit, per head; 0 for a
// masked edge. mask, extra and out_extra may be null.
template <class T>
struct Softmax {
    const T* __restrict__ logits;
    const unsigned char* __restrict__ mask;
    T* __restrict__ out;
    const int64 heads;

    __device__ __forceinline__ bool kept(int64 e) const { return !mask || !mask[e]; }

    __device__ __forceinline__ T highest(const Ranges& range, int64 h, T high) const {
        for (int64 e = range.begin; e < range.end; e++) {
            const T logit = logits[e * heads + h];
            if (kept(e) && logit > high) high = logit;
        }
        return high;
    }

    // Writes the exponentials and returns their sum.
    __device__ __forceinline__ T exponentials(const Ranges& range, int64 h, T high) const {
        T total = 0;
        for (int64 e = range.begin; e < range.end; e++) {
            const T value = kept(e) ? exp(logits[e * heads + h] - high) : T(0);
            out[e * heads + h] = value;
            total += value;
        }
        return total;
    }

    __device__ __forceinline__ void divide(const Ranges& range, int64 h, T total) const {
        for (int64 e = range.begin; e < range.end; e++)
            if (kept(e)) out[e * heads + h] /= total;
    }
};

template <class T>
__device__ __forceinline__ void segment_softmax(const int64* __restrict__ indptr, const T* __restrict__ logits,
                                                const unsigned char* __restrict__ mask, const T* __restrict__ extra,
                                                T* __restrict__ out, T* __restrict__ out_extra,
                                                T* __restrict__ scratch_high, T* __restrict__ scratch_total,
                                                int64 num_dst, int64 num_edges, int64 heads, int64 stage) {
    const Softmax<T> softmax = {logits, mask, out, heads};
    const T lowest = -T(1) / T(0);
    const int64 h = column<1>();
    if (h >= heads) return;
    for (Ranges range(indptr, num_dst, num_edges, stage); range.next();) {
        const int64 dh = range.dst * heads + h;
        if (stage == 1) {
            atomic_max(scratch_high + dh, softmax.highest(range, h, lowest));
        } else if (stage == 2) {
            add<ATOMIC>(scratch_total + dh, softmax.exponentials(range, h, scratch_high[dh]));
        } else if (stage == 0 && range.is_hub()) {
            scratch_high[dh] = extra ? extra[dh] : lowest;
            scratch_total[dh] = 0;
        } else {
            const bool hub = stage == 3;
            const T high = hub ? scratch_high[dh] : softmax.highest(range, h, extra ? extra[dh] : lowest);
            const T own = extra ? exp(extra[dh] - high) : T(0);
            const T total = own + (hub ? scratch_total[dh] : softmax.exponentials(range, h, high));
            softmax.divide(range, h, total);
            if (extra && range.begin == indptr[range.dst]) out_extra[dh] = own / total;
        }
    }
}

// grad_logits[e] = alpha[e] * (grad[e] - inner), inner = sum over the destination, extra included, of alpha * grad
template <class T>
__device__ __forceinline__ void segment_softmax_backward(
    const int64* __restrict__ indptr, const T* __restrict__ alpha, const T* __restrict__ alpha_extra,
    const T* __restrict__ grad, const T* __restrict__ grad_extra, T* __restrict__ grad_logits,
    T* __restrict__ grad_logits_extra, T* __restrict__ scratch_inner, int64 num_dst, int64 num_edges, int64 heads,
    int64 stage) {
    const int64 h = column<1>();
    if (h >= heads) return;
    for (Ranges range(indptr, num_dst, num_edges, stage); range.next();) {
        const int64 dh = range.dst * heads + h;
        T inner = alpha_extra && stage == 0 ? alpha_extra[dh] * grad_extra[dh] : T(0);
        if (stage < 2)
            for (int64 e = range.begin; e < range.end; e++) inner += alpha[e * heads + h] * grad[e * heads + h];
        if (stage == 1) {
            add<ATOMIC>(scratch_inner + dh, inner);
        } else if (stage == 0 && range.is_hub()) {
            scratch_inner[dh] = inner;
        } else {
            if (stage == 2) inner = scratch_inner[dh];
            for (int64 e = range.begin; e < range.end; e++)
                grad_logits[e * heads + h] = alpha[e * heads + h] * (grad[e * heads + h] - inner);
            if (alpha_extra && range.begin == indptr[range.dst])
                grad_logits_extra[dh] = alpha_extra[dh] * (grad_extra[dh] - inner);
        }
    }
}

#define SOFTMAX(type, T)                                                                                             \
    KERNEL(segment_softmax_##type##x1,                                                                               \
           (const int64* indptr, const T* logits, const unsigned char* mask, const T* extra, T* out, T* out_extra,   \
            T* scratch_high, T* scratch_total, int64 num_dst, int64 num_edges, int64 heads, int64 stage),            \
           (segment_softmax<T>(indptr, logits, mask, extra, out, out_extra, scratch_high, scratch_total, num_dst,    \
                               num_edges, heads, stage)))                                                            \
    KERNEL(segment_softmax_backward_##type##x1,                                                                      \
           (const int64* indptr, const T* alpha, const T* alpha_extra, const T* grad, const T* grad_extra,           \
            T* grad_logits, T* grad_logits_extra, T* scratch_inner, int64 num_dst, int64 num_edges, int64 heads,     \
            int64 stage),                                                                                            \
           (segment_softmax_backward<T>(indptr, alpha, alpha_extra, grad, grad_extra, grad_logits,                   \
                                        grad_logits_extra, scratch_inner, num_dst, num_edges, heads, stage)))
SOFTMAX(f32, float)
SOFTMAX(f64, double)
