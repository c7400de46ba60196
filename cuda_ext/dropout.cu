// Dropout by a hash of what an element is; the twin of hongtu.nn.dropout, with the same masks to the bit.
#include "shared.cuh"

constexpr uint64 GOLDEN = 0x9E3779B97F4A7C15ull;

__device__ __forceinline__ uint64 mix(uint64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// out[r, f] = x[r, f] * scale, or 0 where the 32-bit hash of (*key, site, call, ids[r], f) is below the threshold.
// A group of lanes per row, a lane per pair of columns: one 64-bit hash serves two.
template <class T>
__device__ __forceinline__ void dropout(const T* __restrict__ x, const int64* __restrict__ ids,
                                        const uint64* __restrict__ key, uint64 site, uint64 call, uint64 threshold,
                                        T scale, T* __restrict__ out, int64 x_stride, int64 out_stride,
                                        int64 num_rows, int64 width) {
    const uint64 of_call = mix(mix(*key ^ mix(site + GOLDEN)) ^ mix(call + GOLDEN));
    for (int64 r = first_group(); r < num_rows; r += group_step()) {
        const uint64 row = mix(mix((uint64)ids[r]) ^ of_call);
        for (int64 f = threadIdx.x * 2; f < width; f += blockDim.x * 2) {
            const uint64 bits = mix(row + (uint64)(f / 2) * GOLDEN);
            const int64 from = r * x_stride + f, to = r * out_stride + f;
            out[to] = (bits & 0xFFFFFFFFull) >= threshold ? x[from] * scale : T(0);
            if (f + 1 < width) out[to + 1] = bits >> 32 >= threshold ? x[from + 1] * scale : T(0);
        }
    }
}

#define DROPOUT(type, T)                                                                                              \
    KERNEL(dropout_##type##x1,                                                                                        \
           (const T* x, const int64* ids, const uint64* key, uint64 site, uint64 call, uint64 threshold,              \
            double scale, T* out, int64 x_stride, int64 out_stride, int64 num_rows, int64 width),                     \
           (dropout<T>(x, ids, key, site, call, threshold, T(scale), out, x_stride, out_stride, num_rows, width)))
DROPOUT(f32, float)
DROPOUT(f64, double)
