"""Pieces that the input lacks: features, labels and splits, all decided by the seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from hongtu.config import spec_width
from hongtu.errors import InputError
from hongtu.files import Create, in_memory
from hongtu.preprocess.read.graph import SPLITS

BLOCK = 1 << 20  # elements made in one step

# one stream per piece, so that adding one flag does not change what another gives
_FEATURES, _LABELS, _SPLIT = 1, 2, 3


def synthesize_features(
    spec: str, in_degree: np.ndarray, out_degree: np.ndarray, seed: int, create: Create = in_memory
) -> np.ndarray:
    """Features for vertices without any, in original order, made block by block.

    "random:F" draws standard normals. "degree" gives four columns: log(1 + in-degree), log(1 + out-degree),
    in-degree / mean in-degree, and 1.

    Returns:
        float32 [V, F], made by ``create("features", ...)``.

    >>> synthesize_features("degree", np.array([0, 2]), np.array([1, 1]), 0)[:, 2:].tolist()
    [[0.0, 1.0], [2.0, 1.0]]
    """
    width = 4 if spec == "degree" else spec_width("features", spec, ("random:F",))
    features = create("features", "float32", (len(in_degree), width))
    rng = np.random.default_rng((seed, _FEATURES))
    mean = max(float(in_degree.mean()), 1e-12)
    step = max(1, BLOCK // width)
    for lo in range(0, len(in_degree), step):
        block = features[lo : lo + step]
        if spec == "degree":
            incoming, outgoing = in_degree[lo : lo + step], out_degree[lo : lo + step]
            block.T[:] = np.log1p(incoming), np.log1p(outgoing), incoming / mean, np.ones(len(incoming))
        else:
            block[:] = rng.standard_normal(block.shape, dtype=np.float32)
    return features


def synthesize_labels(spec: str, num_vertices: int, seed: int) -> tuple[np.ndarray, int]:
    """Uniform labels int64 [V] and the number of classes, for ``random:C``."""
    classes = spec_width("labels", spec, ("random:C",))
    return np.random.default_rng((seed, _LABELS)).integers(0, classes, num_vertices), classes


def synthesize_split(
    parts: tuple[Any, ...], labelled: np.ndarray, seed: int, classes: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Disjoint random masks bool [V] over the labelled vertices; train has at least one of them.

    Args:
        parts: of train, val and test: shares, numbers of vertices, or "rest".
        classes: int64 [V]: split the vertices of every class by themselves; None: all together.

    Raises:
        InputError: when there are fewer vertices than the numbers ask for.

    >>> masks = synthesize_split((2, 0.25, "rest"), np.ones(8, bool), 0, np.array([0, 1] * 4))
    >>> {split: [int(mask[0::2].sum()), int(mask[1::2].sum())] for split, mask in masks.items()}
    {'train': [2, 2], 'val': [1, 1], 'test': [1, 1]}
    """
    shuffled = np.random.default_rng((seed, _SPLIT)).permutation(np.flatnonzero(labelled))
    of_class = np.zeros(len(labelled), dtype=np.int64) if classes is None else classes
    masks = {split: np.zeros(len(labelled), dtype=bool) for split in SPLITS}
    for number in np.unique(of_class[shuffled]):
        vertices = shuffled[of_class[shuffled] == number]
        whole = sum(int(part) for part in parts if part != "rest" and part > 1)
        if whole > len(vertices):
            where = "" if classes is None else f" of class {number}"
            raise InputError(f"random_split: {len(vertices)} labelled vertices{where}, expected {whole}; ask for fewer")
        counts = [len(vertices) if part == "rest" else part if part > 1 else part * len(vertices) for part in parts]
        ends = np.rint(np.cumsum(counts)).astype(np.int64)
        ends = np.minimum(np.maximum(ends, 1), len(vertices))
        for split, lo, hi in zip(SPLITS, (0, *ends[:-1]), ends, strict=True):
            masks[split][vertices[lo:hi]] = True
    return masks
