"""Numba kernels of gates over one bipartite CSC block; the conventions are those of ``hongtu.kernels``.

Legend: D destinations, C cache rows, F features. An edge takes an exponential per feature; the C library's are called
one by one, ours vectorise: two to four times as fast.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange, types
from numba.extending import overload

from hongtu.kernels import balanced_bounds, parallel, parts_for, source_bounds


def exp(x):
    """e^x of a float32 or float64 to within two units in the last place, for use in kernels.

    Near the ends of what is a normal number (below e^-87 and e^-708, above e^88 and e^709) it is 0 and infinity: with
    smaller numbers processors are slow. NaN stays NaN.
    """
    return (_exp32 if isinstance(x, np.float32) else _exp64)(x)


@overload(exp, inline="always")
def _exp(x):
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: _exp64(x)


@njit(cache=True, nogil=True, fastmath=False, error_model="numpy")
def _exp32(x):
    """2^n e^r with |r| <= ln 2 / 2, a polynomial in r (S. L. Moshier, Cephes, expf). Nothing may be reordered: ln 2 is
    subtracted in two parts, of which the first has few digits."""
    f, given = np.float32, x
    x = f(-87.0) if x < f(-87.0) else x
    x = f(88.0) if x > f(88.0) else x
    n = np.floor(x * f(1.44269504088896341) + f(0.5))
    r = (x - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = f(1.9875691500e-4)
    p = p * r + f(1.3981999507e-3)
    p = p * r + f(8.3334519073e-3)
    p = p * r + f(4.1665795894e-2)
    p = p * r + f(1.6666665459e-1)
    p = p * r + f(5.0000001201e-1)
    p = p * r * r + r + f(1.0)
    exponent = (np.int32(n if n == n else f(0.0)) + np.int32(127)) << np.int32(23)
    p *= np.int32(exponent).view(np.float32)
    p = f(0.0) if given < f(-87.0) else p
    return f(np.inf) if given > f(88.0) else p


@njit(cache=True, nogil=True, fastmath=False, error_model="numpy")
def _exp64(x):
    """The same with a quotient of polynomials (Cephes, exp)."""
    given = x
    x = -708.0 if x < -708.0 else x
    x = 709.0 if x > 709.0 else x
    n = np.floor(x * 1.44269504088896341 + 0.5)
    r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6
    q = r * r
    p = r * ((1.26177193074810590878e-4 * q + 3.02994407707441961300e-2) * q + 9.99999999999999999910e-1)
    d = ((3.00198505138664455042e-6 * q + 2.52448340349684104192e-3) * q + 2.27265548208155028766e-1) * q + 2.0
    exponent = (np.int64(n if n == n else 0.0) + np.int64(1023)) << np.int64(52)
    y = (1.0 + 2.0 * p / (d - p)) * np.int64(exponent).view(np.float64)
    y = 0.0 if given < -708.0 else y
    return np.inf if given > 709.0 else y


@parallel
def gated_sum(indptr, local_source, key_DF, rows_C2F, out_DF, threads):
    """out[d] = sum over in-edges of sigmoid(key[d] + query) * value; a source row is [query | value]."""
    width, one = np.uint64(out_DF.shape[1]), out_DF.dtype.type(1)
    parts = parts_for((len(local_source) + out_DF.shape[0]) * out_DF.shape[1] * 8, threads)
    bounds = balanced_bounds(indptr, parts)
    for part in prange(parts):
        for d in range(bounds[part], bounds[part + 1]):
            for f in range(width):
                out_DF[d, f] = 0
            for e in range(indptr[d], indptr[d + 1]):
                row = np.uint64(local_source[e])
                for f in range(width):
                    gate = one / (one + exp(-(key_DF[d, f] + rows_C2F[row, f])))
                    out_DF[d, f] += gate * rows_C2F[row, width + f]


@parallel
def gated_sum_key_gradient(indptr, local_source, key_DF, rows_C2F, grad_DF, out_DF, threads):
    """Gradient of ``gated_sum`` with respect to the keys; overwrites ``out``."""
    width, one = np.uint64(out_DF.shape[1]), out_DF.dtype.type(1)
    parts = parts_for((len(local_source) + out_DF.shape[0]) * out_DF.shape[1] * 8, threads)
    bounds = balanced_bounds(indptr, parts)
    for part in prange(parts):
        for d in range(bounds[part], bounds[part + 1]):
            for f in range(width):
                out_DF[d, f] = 0
            for e in range(indptr[d], indptr[d + 1]):
                row = np.uint64(local_source[e])
                for f in range(width):
                    gate = one / (one + exp(-(key_DF[d, f] + rows_C2F[row, f])))
                    out_DF[d, f] += gate * (one - gate) * rows_C2F[row, width + f]
            for f in range(width):
                out_DF[d, f] *= grad_DF[d, f]


@parallel
def gated_sum_transpose(indptr, local_source, key_DF, rows_C2F, grad_DF, out_C2F, threads):
    """Adds the gradient of ``gated_sum`` with respect to the source rows to ``out_C2F``, in place."""
    width, one = np.uint64(grad_DF.shape[1]), grad_DF.dtype.type(1)
    bounds = source_bounds(local_source, grad_DF.shape[1] * 8, threads)
    for part in prange(len(bounds) - 1):
        lo, hi = bounds[part], bounds[part + 1]
        for d in range(grad_DF.shape[0]):
            for e in range(indptr[d], indptr[d + 1]):
                if lo <= local_source[e] < hi:
                    row = np.uint64(local_source[e])
                    for f in range(width):
                        gate = one / (one + exp(-(key_DF[d, f] + rows_C2F[row, f])))
                        change = grad_DF[d, f] * gate
                        out_C2F[row, f] += change * (one - gate) * rows_C2F[row, width + f]
                        out_C2F[row, width + f] += change
