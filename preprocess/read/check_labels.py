"""What is refused in labels and masks, and the forms of both that are taken."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from hongtu.errors import InputError, note
from hongtu.preprocess.read.graph import SPLITS, RawGraph
from hongtu.preprocess.read.source import as_float32

FREE_CLASSES = 1024  # class ids that even a tiny graph may have; above, there are at most as many as vertices
LABEL_REMEDY = "convert them (-1 = none), or pass --labels random:C, or --task regression for numbers to predict"

NAMES_REMEDY = "number the classes, with numpy.unique(labels, return_inverse=True)[1]"


def check_labels(raw: RawGraph) -> None:
    """Classes int64 [V], or many per vertex float32 [V, C], and how many."""
    labels, vertices = raw.labels, raw.num_vertices
    raw.expect("labels", labels, labels.ndim > 0, f"one for each of {vertices} vertices ({raw.vertices_from})")
    whole = labels.dtype.kind in "biu"
    one_hot = whole and labels.ndim == 2 and labels.shape[1] > 1 and bool((labels.sum(axis=1) == 1).all())
    one_hot = one_hot and bool(((labels == 0) | (labels == 1)).all())
    if whole and labels.shape[1:] == (1,):
        raw.labels = labels[:, 0]  # as OGB has them
    elif whole and labels.ndim == 2 and not one_hot:
        raw.labels = np.where(labels == -1, np.float32(np.nan), labels.astype(np.float32))
    if raw.labels.ndim == 1:
        raw.labels = _as_classes(raw)
    kind, rank = raw.labels.dtype.kind, raw.labels.ndim
    good = len(labels) == vertices and ((kind in "iu" and rank == 1) or (kind == "f" and rank == 2))
    remedy = NAMES_REMEDY if kind in "UO" and rank == 1 else LABEL_REMEDY
    if len(labels) != vertices:
        remedy = "give one for each vertex, -1 (of several columns nan) where there is none"
    elif one_hot:
        name = raw.name("labels")
        classes, floats = "labels.argmax(1)", "labels.astype(numpy.float32)"
        if name.startswith(("data.", "data[")):
            classes, floats = f"{name}.int().argmax(1)", f"{name}.float()"
        remedy = f"they are one-hot: pass {classes} for a class each, or {floats} for multi-label"
    raw.expect(
        "labels", labels, good,
        f"integers [{vertices}], or float32 [{vertices}, C] for multi-label ({raw.vertices_from}); {remedy}",
    )  # fmt: skip
    (_check_multiclass if rank == 1 else _check_multilabel)(raw)


def has_label(labels: np.ndarray) -> np.ndarray:
    """bool [V], of checked labels."""
    return labels >= 0 if labels.ndim == 1 else ~np.isnan(labels).all(axis=1)


def _as_classes(raw: RawGraph) -> np.ndarray:
    """int64 [V] of truth values, or of whole numbers with NaN where there is none, as tables have classes with gaps;
    other labels as they are."""
    labels = raw.labels
    if labels.dtype == bool:
        return labels.astype(np.int64)
    if labels.dtype.kind != "f":
        return labels
    none = np.isnan(labels)
    whole = labels[~none].astype(np.float64)  # of half precision 2**31 is none
    if not len(whole) or (np.abs(whole) >= 2**31).any() or (whole != np.rint(whole)).any():
        return labels
    taken = f"whole numbers, taken as classes ({int(none.sum())} nan: none)"
    numbers = "task='regression' (--task regression) predicts numbers"
    note(f"{raw.name('labels')}: {labels.dtype}, {taken}; {numbers}")
    return np.where(none, -1, labels).astype(np.int64)


def _check_multiclass(raw: RawGraph) -> None:
    labels = raw.labels
    bound = raw.classes if raw.classes is not None else max(raw.num_vertices, FREE_CLASSES)
    bad = np.flatnonzero((labels < -1) | (labels >= bound))
    if len(bad):
        if raw.classes is not None:
            why, remedy = f"meta.json says {raw.classes} classes", 'renumber the classes, or correct "classes" there'
        else:
            why = f"{raw.num_vertices} vertices have at most {bound} classes"
            remedy = "renumber the classes from 0"
            if raw.name("labels").endswith(".npy"):
                remedy += ', or put their number in meta.json as "classes"'
        remedy = "put -1 where there is none" if labels[bad[0]] < -1 else remedy
        raise InputError(
            f"{raw.name('labels')}: [{bad[0]}] is {labels[bad[0]]}, expected -1 (none) or a class from 0 to "
            f"{bound - 1} ({why}); {remedy}"
        )
    raw.labels = labels.astype(np.int64)
    if raw.classes is None:
        raw.classes = max(int(labels.max()) + 1, 1)


def _check_multilabel(raw: RawGraph) -> None:
    _check_columns(raw)
    labels = raw.labels
    outside = np.argwhere((labels < 0) | (labels > 1))
    if len(outside):
        row, column = outside[0]
        raise InputError(
            f"{raw.name('labels')}: [{row}, {column}] is {labels[row, column]}, expected a number from 0 to 1; "
            "save 0 or 1 there, nan where there is none, or pass --task regression for numbers to predict"
        )
    raw.labels, raw.classes = labels.astype(np.float32), labels.shape[1]
    if labels.shape[1] > 1 and ((labels == 1).sum(axis=1) == 1).all() and np.isin(labels, (0, 1)).all():
        taken = "one class in every row, taken as multi-label; labels.argmax(1) are one class per vertex"
        note(f"{raw.name('labels')}: {taken}")


def check_numbers(raw: RawGraph) -> None:
    """Labels to regress on: [V] or [V, C]."""
    labels, vertices = raw.labels, raw.num_vertices
    good = labels.dtype.kind in "biuf" and labels.ndim in (1, 2) and labels.shape[0] == vertices
    remedy = "save a number for each vertex, nan where there is none, or leave --task out"
    raw.expect("labels", labels, good, f"float32 [{vertices}] or [{vertices}, C] ({raw.vertices_from}); {remedy}")
    raw.labels = labels.reshape(vertices, -1)
    _check_columns(raw)
    raw.labels = as_float32(raw.labels)
    infinite = np.argwhere(np.isinf(raw.labels))
    if len(infinite):
        row, column = infinite[0]
        refuse_value(f"{raw.name('labels')}: [{row}, {column}]", labels.reshape(vertices, -1)[row, column])
    raw.classes = raw.labels.shape[1]


def _check_columns(raw: RawGraph) -> None:
    """One for each class."""
    labels, name = raw.labels, raw.name("labels")
    if labels.shape[1] == 0 or raw.classes not in (None, labels.shape[1]):
        remedy = "save them, or pass --labels random:C"
        if raw.classes:
            remedy = 'save as many, or correct "classes" in meta.json'
        expected = f"expected {raw.classes or 'at least one'}, one for each class"
        raise InputError(f"{name}: {labels.shape[1]} columns, {expected}; {remedy}")


def choose_split(raw: RawGraph, split: int | None) -> None:
    """One mask bool [V] of each split, of several the one that is asked for; without any it is all False."""
    vertices, several = raw.num_vertices, False
    chosen = {split: np.zeros(vertices, dtype=bool) for split in SPLITS}
    for name, mask in (raw.masks or {}).items():
        mask = of_numbers(mask, vertices, raw.name(name))
        good = mask.dtype == bool and mask.ndim in (1, 2) and mask.shape[-1] == vertices and len(mask) > 0
        remedy, several_form, given = "save one value for each vertex", f"[S, {vertices}]", mask
        if raw.name(name).startswith(("data.", "data[")):  # whose masks are turned
            several_form, given = f"[{vertices}, S]", mask.T
        if mask.ndim == 2 and mask.shape[0] == vertices:
            remedy = f"{'give' if given is not mask else 'save'} its .T, and say which split by --split 0"
        elif mask.dtype != bool:
            remedy = "save it as numpy." + ("bool_" if mask.shape[-1:] == (vertices,) else "int64")
        expected = f"bool [{vertices}] or {several_form}, or distinct vertex numbers ({raw.vertices_from})"
        raw.expect(name, given, good, f"{expected}; {remedy}, or pass --random-split 0.6,0.2,0.2")
        if mask.ndim == 2:
            several = True
            if split is None and len(mask) > 1:
                raise InputError(
                    f"{raw.name(name)}: {len(mask)} splits; pass one, --split 0 to --split {len(mask) - 1}"
                )
            if split is not None and split >= len(mask):
                raise InputError(f"{raw.name(name)}: {len(mask)} splits, but --split is {split}; pass a smaller one")
            mask = mask[split or 0]
        chosen[name] = np.array(mask)
    if split and not several:
        raise InputError(f"{raw.name('train')}: one split only, but --split is {split}; leave --split out")
    raw.masks = chosen


def of_numbers(mask: np.ndarray, vertices: int, title: str) -> np.ndarray:
    """The mask of distinct vertex numbers, as OGB gives splits, or of integers 0 and 1 for all of more than two
    vertices, as older torch had masks; anything else as it is.

    >>> of_numbers(np.array([3, 0]), 4, "train").tolist(), of_numbers(np.array([0, 1, 1]), 3, "train").tolist()
    ([True, False, False, True], [False, True, True])

    Raises:
        InputError: for a number that is no vertex, or is there twice.
    """
    if mask.dtype.kind not in "iu":
        return mask
    if mask.shape[-1:] == (vertices,) and vertices > 2 and mask.size and mask.min() >= 0 and mask.max() <= 1:
        return mask.astype(bool)
    if mask.ndim != 1 or len(mask) > vertices:
        return mask
    outside = np.flatnonzero((mask < 0) | (mask >= vertices))
    numbers, counts = np.unique(mask, return_counts=True)
    wrong = f"vertex {numbers[counts.argmax()]} is there {counts.max()} times" if counts.max(initial=0) > 1 else ""
    if len(outside):
        wrong = f"[{outside[0]}] is {mask[outside[0]]}"
    if wrong:
        raise InputError(
            f"{title}: {wrong}, expected distinct vertex numbers from 0 to {vertices - 1}, or bool [{vertices}]; "
            "correct it, or pass --random-split 0.6,0.2,0.2"
        )
    chosen = np.zeros(vertices, dtype=bool)
    chosen[mask] = True
    return chosen


def check_masks(raw: RawGraph, labelled: np.ndarray, given: Collection[str]) -> None:
    """Masks that overlap, or hold what has no label; one that is given for train, without a vertex."""
    masks = raw.masks
    if "train" in given and not masks["train"].any():
        raise InputError(
            f"{raw.name('train')}: no vertex is True (empty train mask), expected at least one; "
            "mark some, or pass --random-split 0.6,0.2,0.2; leave it out for a graph to predict on"
        )
    for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
        both = np.flatnonzero(masks[first] & masks[second])
        if len(both):
            raise InputError(
                f"{raw.name(first)} and {raw.name(second)}: overlapping masks: vertex {both[0]} and {len(both) - 1} "
                "more are in both, expected disjoint masks; take them out of one"
            )
    for split in SPLITS:
        unlabelled = np.flatnonzero(masks[split] & ~labelled)
        if len(unlabelled):
            shown = raw.labels[unlabelled[0]] if raw.labels.ndim == 1 else "all nan"
            signs = raw.labels.ndim == 1 and np.array_equal(np.unique(raw.labels), [-1, 1])
            of_signs = ", or pass (labels + 1) // 2 where -1 and 1 are two classes" if signs else ""
            raise InputError(
                f"{raw.name(split)}: contains vertex {unlabelled[0]} (and {len(unlabelled) - 1} more) whose label is "
                f"{shown}, expected labelled vertices only; clear the mask where there is no label{of_signs}"
            )


def refuse_value(position: str, value: Any) -> None:
    """Refuse what is no finite number."""
    raise InputError(
        f"{position} is {value}, expected a finite float32 number; replace it (numpy.nan_to_num) or drop it"
    )
