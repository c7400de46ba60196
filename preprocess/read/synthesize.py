"""Pieces that the input lacks: features, labels and splits, all decided by the seed."""

from __future__ import annotations

import numpy as np

from hongtu.config import spec_width
from hongtu.preprocess.read.graph import SPLITS

# one stream per piece, so that adding one flag does not change what another gives
_FEATURES, _LABELS, _SPLIT = 1, 2, 3


def synthesize_features(spec: str, in_degree: np.ndarray, out_degree: np.ndarray, seed: int) -> np.ndarray:
    """Features for vertices without any, in original order.

    "random:F" draws standard normals. "degree" gives four columns: log(1 + in-degree), log(1 + out-degree),
    in-degree / mean in-degree, and 1.

    Returns:
        float32 [V, F].

    >>> synthesize_features("degree", np.array([0, 2]), np.array([1, 1]), 0)[:, 2:].tolist()
    [[0.0, 1.0], [2.0, 1.0]]
    """
    if spec != "degree":
        width = spec_width("features", spec, ("random:F",))
        return np.random.default_rng((seed, _FEATURES)).standard_normal((len(in_degree), width), dtype=np.float32)
    mean = max(float(in_degree.mean()), 1e-12)
    columns = (np.log1p(in_degree), np.log1p(out_degree), in_degree / mean, np.ones(len(in_degree)))
    return np.stack(columns, axis=1).astype(np.float32)


def synthesize_labels(spec: str, num_vertices: int, seed: int) -> tuple[np.ndarray, int]:
    """Uniform labels int64 [V] and the number of classes, for ``random:C``."""
    classes = spec_width("labels", spec, ("random:C",))
    return np.random.default_rng((seed, _LABELS)).integers(0, classes, num_vertices), classes


def synthesize_split(fractions: tuple[float, float, float], labelled: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Disjoint random masks bool [V] over the labelled vertices; train has at least one of them."""
    vertices = np.random.default_rng((seed, _SPLIT)).permutation(np.flatnonzero(labelled))
    ends = np.rint(np.cumsum(fractions) * len(vertices)).astype(np.int64)
    ends = np.minimum(np.maximum(ends, 1), len(vertices))
    masks = {}
    for split, lo, hi in zip(SPLITS, (0, *ends[:-1]), ends, strict=True):
        masks[split] = np.zeros(len(labelled), dtype=bool)
        masks[split][vertices[lo:hi]] = True
    return masks
