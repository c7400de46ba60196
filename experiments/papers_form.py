"""A graph in the form of ogbn-papers100M as OGB unpacks it, of any size; its memory is that of a block.

    python -m experiments.papers_form FOLDER --vertices 11000000 --edges 160000000

Papers cite papers before them, mostly near ones; one in seventy has a label, as there, and the others nan.
"""

from __future__ import annotations

import argparse
import gzip
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 1 << 20  # edges or rows written in one step
LABELLED, NEAR = 70, 4096
SPLIT = {"train": 0.78, "valid": 0.08, "test": 0.14}  # of the papers that have a label


def edges_of(vertices: int, edges: int, seed: int) -> Iterator[np.ndarray]:
    """int64 [2, B], each from a later paper to an earlier one."""
    for lo in range(0, edges, BLOCK):
        rng = np.random.default_rng((seed, lo))
        citing = rng.integers(1, vertices, min(BLOCK, edges - lo))
        back = np.minimum(rng.exponential(NEAR, len(citing)).astype(np.int64), citing - 1)
        far = rng.random(len(citing)) < 0.2
        yield np.stack(
            [citing, np.where(far, (citing * rng.random(len(citing)) ** 2).astype(np.int64), citing - 1 - back)]
        )


def rows_of(vertices: int, features: int, classes: int, seed: int) -> Iterator[np.ndarray]:
    """float32 [B, F] around a mean of each class."""
    means = np.random.default_rng(seed).standard_normal((classes, features)).astype(np.float32)
    for lo in range(0, vertices, BLOCK // features):
        ids = np.arange(lo, min(lo + BLOCK // features, vertices))
        noise = np.random.default_rng((seed, lo)).standard_normal((len(ids), features), dtype=np.float32)
        yield means[ids % classes] + noise


def write(
    archive: zipfile.ZipFile, name: str, dtype: str, shape: tuple[int, ...], blocks: Iterable[np.ndarray]
) -> None:
    """An array as ``numpy.savez_compressed`` has it."""
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block, dtype).tobytes())


def write_papers(
    folder: Path, vertices: int, edges: int, features: int = 128, classes: int = 172, seed: int = 0
) -> Path:
    """``raw/data.npz``, ``raw/node-label.npz`` and ``split/time``."""
    for name in ("raw", "split/time"):
        (folder / name).mkdir(parents=True)
    with zipfile.ZipFile(folder / "raw" / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        rows = (block[row] for row in (0, 1) for block in edges_of(vertices, edges, seed))
        write(archive, "edge_index", "int64", (2, edges), rows)
        write(archive, "node_feat", "float32", (vertices, features), rows_of(vertices, features, classes, seed))
        write(archive, "node_year", "int64", (vertices, 1), [2000 + np.arange(vertices) * 20 // vertices])
        for name, count in (("num_nodes_list", vertices), ("num_edges_list", edges)):
            write(archive, name, "int64", (1,), [np.array([count])])
    ids = np.random.default_rng(seed).permutation(vertices)[: max(3, vertices // LABELLED)]
    labels = np.full((vertices, 1), np.nan, np.float32)
    labels[ids, 0] = ids % classes
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=labels)
    at = 0
    for split, share in SPLIT.items():
        count = len(ids) - at if split == "test" else max(1, int(share * len(ids)))
        with gzip.open(folder / "split" / "time" / f"{split}.csv.gz", "wt") as stream:
            stream.writelines(f"{paper}\n" for paper in np.sort(ids[at : at + count]).tolist())
        at += count
    return folder


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    for name, default in (("vertices", 11_000_000), ("edges", 160_000_000), ("features", 128), ("classes", 172)):
        parser.add_argument(f"--{name}", type=int, default=default)
    write_papers(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
