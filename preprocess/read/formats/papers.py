"""Citation graphs of OGB-LSC and IGB as .npy arrays, which stay where they are: papers, which alone have labels.

mag240m_kddcup2021/split_dict.pt, processed/paper/node_feat.npy, node_label.npy       (float16, nan where there is none)
mag240m_kddcup2021/processed/paper___cites___paper/edge_index.npy                     (int64 [2, E])
small/processed/paper/node_feat.npy, node_label_19.npy, node_label_2K.npy             (float32)
small/processed/paper__cites__paper/edge_index.npy                                    (int [E, 2])
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hongtu.config import PreprocessConfig
from hongtu.errors import InputError
from hongtu.files import open_npy
from hongtu.preprocess.read.formats.ogb import masks_of, read_arrays
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.size import Reading, Sizes
from hongtu.preprocess.read.source import EdgeBlock, array_blocks

LSC, IGB = "paper___cites___paper", "paper__cites__paper"
LABELS = ("node_label.npy", "node_label_19.npy", "node_label_2K.npy")
REMEDY = "download it again"
WIDTH = 1024  # columns of IGB's features, whose largest files have no header
LABELLED = {269_346_174: {"node_label_19.npy": 227_130_858, "node_label_2K.npy": 157_675_969}}  # of IGB260M's papers
TRAIN, VALIDATION = 0.6, 0.2  # of IGB's labelled papers, in their order


def is_papers(path: Path) -> bool:
    """Whether this is the folder of a dataset."""
    return any((path / "processed" / name / "edge_index.npy").is_file() for name in (LSC, IGB))


def open_papers(path: Path, config: PreprocessConfig, reading: Reading) -> RawGraph:
    """Papers and what they cite."""
    folder = path / "processed"
    of_igb = not (folder / LSC / "edge_index.npy").is_file()
    file = folder / (IGB if of_igb else LSC) / "edge_index.npy"
    edges = open_npy(file, REMEDY)
    if edges.ndim != 2 or edges.shape[1 if of_igb else 0] != 2:
        raise InputError(f"{file}: shape {edges.shape}, expected {'[E, 2]' if of_igb else '[2, E]'}; {REMEDY}")
    source, destination = edges.T if of_igb else edges
    rows = folder / "paper" / "node_feat.npy"
    if not rows.is_file():
        raise InputError(f"{rows}: missing; {REMEDY}")
    features = _numbers(rows, WIDTH, of_igb)
    vertices = len(features)
    beside = next((name for name in LABELS if (folder / "paper" / name).is_file()), None)
    reading.expect(Sizes(
        title=str(path), vertices=vertices, edges=len(source), labels=8 * vertices,
        width=0 if config.features else int(np.prod(features.shape[1:])),
    ))  # fmt: skip
    raw = RawGraph(title=str(file), num_vertices=vertices, features=None if config.features else features)
    raw.names, raw.vertices_from = {"features": str(rows)}, f"{rows} has {vertices} rows"
    raw.names |= {split: str(path / "split_dict.pt") for split in SPLITS}
    stream = array_blocks(str(file), source, destination, None)

    def blocks(as_text: bool) -> Iterator[EdgeBlock]:
        done = 0
        for block in stream(as_text):
            yield block
            done += len(block.source)
            reading.progress(done / len(source))

    raw.blocks = blocks
    if beside is not None and not config.labels:
        raw.names["labels"] = str(folder / "paper" / beside)
        known = LABELLED.get(vertices, {}).get(beside, vertices)
        raw.labels = _labels(folder / "paper" / beside, known, of_igb)
        if not config.random_split:
            raw.masks = _igb_split(raw.labels, known) if of_igb else None
            split = path / "split_dict.pt"
            if not of_igb and split.is_file():
                arrays = read_arrays(split)
                arrays.setdefault("test", arrays.get("test-whole", np.zeros(0, np.int64)))  # whose labels nobody has
                raw.masks = masks_of(arrays, split, vertices)
            _leave_out(raw)
    others = [name for name in LABELS if name != beside and (folder / "paper" / name).is_file()]
    if others:
        raw.notes.append(f"{raw.names['labels']}: are the labels; move them away to take {others[0]}")
    return raw


def _numbers(file: Path, width: int, of_igb: bool) -> np.ndarray:
    """The array, or float32 [rows, width] where the file has no header."""
    with file.open("rb") as stream:
        headed = stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
    if headed or not of_igb or file.stat().st_size % (4 * width) or not file.stat().st_size:
        return open_npy(file, REMEDY)
    return np.memmap(file, np.float32, "r", shape=(file.stat().st_size // (4 * width), width))


def _labels(file: Path, known: int, of_igb: bool) -> np.ndarray:
    """float32 or integers [V], of which only so many have a label, the first."""
    labels = np.array(_numbers(file, 1, of_igb)).reshape(-1)
    if labels.dtype.kind not in "iuf":
        raise InputError(f"{file}: {labels.dtype}, expected numbers of classes; {REMEDY}")
    if known < len(labels):
        labels = labels.astype(np.float32)
        labels[known:] = np.nan
    return labels


def _igb_split(labels: np.ndarray, labelled: int) -> dict[str, np.ndarray]:
    ends = [0, int(labelled * TRAIN), int(labelled * TRAIN) + int(labelled * VALIDATION), labelled]
    at = np.arange(len(labels))
    return {
        split: (at >= lo) & (at < hi) for split, lo, hi in zip(("train", "val", "test"), ends, ends[1:], strict=False)
    }


def _leave_out(raw: RawGraph) -> None:
    """Take out of the masks what has no label, as mag240m's test papers, whose labels are not published."""
    assert raw.labels is not None
    none = np.isnan(raw.labels) if raw.labels.dtype.kind == "f" else raw.labels < 0
    for split, mask in (raw.masks or {}).items():
        if len(mask) == len(none) and (mask & none).any():
            raw.notes.append(f"{raw.title}: {int((mask & none).sum())} of {split} have no label and are left out of it")
            mask &= ~none
