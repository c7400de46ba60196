"""Typed settings: one frozen dataclass per command, checked when it is made."""

from __future__ import annotations

import math
import operator
import re
import reprlib
from dataclasses import asdict, dataclass
from typing import Any

from hongtu.errors import InputError

PARTITIONERS = ("auto", "metis", "metis-balanced", "kaminpar", "streaming", "range", "random")
OWN = "own"  # what a partition that the user made is called
ORDERS = ("auto", "input", "clusters", "recursive", "kaminpar")
SWITCHES = (
    "relabel", "undirected", "self_loops", "normalize_features", "stratify", "as_paper", "force", "resume"
)  # of preprocess  # fmt: skip
TASKS = ("regression", "links")  # those that labels do not say themselves
LOSSES = ("cross_entropy", "bce_with_logits", "mse", "l1", "huber", "smooth_l1")
METRICS = ("accuracy", "f1", "macro-f1", "auc")  # of vertices
LINK_METRICS = ("auc", "mrr", "hits@K")
HOST_DTYPES = ("host_dtype", "gradient_dtype")  # settings of what the host keeps rows in
HITS = re.compile(r"hits@([1-9][0-9]*)")
MODELS = ("gcn", "sage", "gin", "commnet", "gat", "ggcn", "gatv2", "transformer", "pna", "sgc", "appnp", "gine", "rgcn")
PARTITIONS, CHUNKS = 4, 32  # where a graph has the vertices for them
MAX_CHUNKS_AUTO = 512  # 16 times the paper's; finer steps gain at most 6% more
VERTICES_PER_CHUNK_AUTO = 256

_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("B", 1000), ("IB", 1024))
    for power, prefix in enumerate("KMGT", start=1)
}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)")


@dataclass(kw_only=True, frozen=True)
class PreprocessConfig:
    """How a graph becomes an artifact.

    Attributes:
        partitions: m, one per device; at least 1. None: 4, or fewer where there are not the vertices for them.
        chunks: n, chunks per partition, at least 1, or "auto": ``max(1, min(512, V // (partitions * 256)))``;
            the planner runs groups of chunks as one where that is faster. None: 32, or fewer as above.
        partitioner: "metis" (needs pymetis), "metis-balanced" (divides vertices, in-edges and train vertices evenly,
            each by itself, and cuts more edges), "kaminpar" (needs kaminpar; faster), "streaming" (fastest of those
            that look at edges, in memory for vertices only), "range" (contiguous ids, edge-balanced), "random", or
            "auto": METIS up to 20M edges, beyond it KaMinPar where it is installed, else streaming; or a file with the
            partition of every vertex, from 0: .npy, or a line each as METIS writes ``graph.part.8``.
        order: order of the vertices inside a partition: "input" (ascending original id), "clusters" (label
            propagation), "recursive" (METIS), "kaminpar", or "auto": the one whose plan loads the fewest rows.
        columns: names of the source, destination and, with a third, weight column (that of types of edges where it is
            called relation, predicate, type or the like, or holds text) of a table or an edge list with a first line of
            names; in an edge list without names the first two (three) columns are meant. None: tables have "source" and
            "destination" (and "weight"), edge lists two columns.
        relabel: number the vertices from 0, in the order in which the edges name them (or of ``ids.npy``); their ids
            may be any integers or text. The artifact keeps them.
        undirected: add the reverse of every edge, then merge duplicates, summing weights (a self-loop is its own
            reverse and counts twice, as in torch_geometric's ``to_undirected``).
        self_loops: add one self-loop, of weight 1, to each vertex that has none.
        normalize_features: divide each feature row by ``max(1, its sum)``.
        seed: seed of the partitioner and of everything random below; 0 <= seed < 2**31.
        features: replaces the input's features: "random:F" (standard normal), "degree" (four columns) or
            "embedding:D" (D columns that training learns); None keeps the input's.
        labels: replaces the input's labels: "random:C" (uniform over C classes); None keeps the input's.
        task: "regression" where labels [N] or [N, C] are numbers to predict (NaN: none); None: integers [N] are one
            class per vertex, numbers [N, C] from 0 to 1 many; "links": edges are predicted, and labels and
            masks are not read.
        random_split: replaces the input's masks: train, val and test of the labelled vertices, each a share up to 1, a
            number of vertices from 2, or for test "rest", such as 0.6,0.2,0.2; None keeps the input's.
        stratify: split the vertices of every class by themselves: 20,30,rest takes 20 and 30 of each.
        split: which row of ``[S, N]`` masks to use, where there are several splits.
        as_paper: as the HongTu paper does it, which makes the published system with the strategy "paper": partitioner
            "metis", order "input", a number of chunks.
        memory: what the run may take beside pages of files, such as "6GiB": refused when the input has been read,
            where it could take more, and blocks of rows are no larger. None: what the machine has.
        force: replace an artifact that already exists.
        resume: continue after the last finished stage of the same run, where one was interrupted; only for a graph on
            disk.
    """

    partitions: int | None = None
    chunks: int | str | None = None
    partitioner: str = "auto"
    order: str = "auto"
    columns: tuple[str, ...] | None = None
    relabel: bool = False
    undirected: bool = False
    self_loops: bool = False
    normalize_features: bool = False
    seed: int = 0
    features: str | None = None
    labels: str | None = None
    task: str | None = None
    random_split: tuple[Any, ...] | None = None
    stratify: bool = False
    split: int | None = None
    as_paper: bool = False
    memory: str | None = None
    force: bool = False
    resume: bool = False

    @property
    def embedding(self) -> int:
        """Columns of learned embeddings that stand in for features, or 0."""
        learned = (self.features or "").startswith("embedding:")
        return spec_width("features", self.features, ("embedding:D",)) if learned else 0

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # frozen: only to store the normalised form of what was given
        for name, least in {"partitions": 1, "chunks": 1, "seed": 0, "split": 0}.items():
            value, also = getattr(self, name), "; or 'auto'" if name == "chunks" else ""
            if value is not None and (name, value) != ("chunks", "auto"):
                set_field(self, name, _integer(name, value, least, also))
        if self.as_paper:
            for name, needed in (("partitioner", "metis"), ("order", "input")):
                if getattr(self, name) not in ("auto", needed):
                    raise InputError(f"as_paper: {name} is {getattr(self, name)!r}, expected {needed!r}; leave it out")
                set_field(self, name, needed)
            if self.chunks == "auto":
                raise InputError("as_paper: chunks is 'auto', expected a number, such as 32")
        if not isinstance(self.partitioner, str) or not {".", "/"} & {*self.partitioner}:  # of a file: graph.part.8
            _one_of("partitioner", self.partitioner, (*PARTITIONERS, OWN))
        _one_of("order", self.order, ORDERS)
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name}: {getattr(self, name)!r}, expected True or False")
        if self.columns is not None:
            set_field(self, "columns", _columns(self.columns))
        if self.features is not None:
            spec_width("features", self.features, ("random:F", "degree", "embedding:D"))
        if self.memory is not None:
            parse_bytes(self.memory)
        if self.embedding and self.normalize_features:
            raise InputError("normalize_features: embeddings are learned; leave it out")
        if self.labels is not None:
            spec_width("labels", self.labels, ("random:C",))
        if self.task is not None:
            _one_of("task", self.task, TASKS)
            if self.labels is not None:
                raise InputError(f"labels {self.labels!r} are classes: leave task {self.task!r} out")
            if self.task == "links" and self.random_split is not None:
                raise InputError("random_split: is one of labelled vertices, and links have none; leave it out")
        if self.random_split is not None:
            set_field(self, "random_split", _parts(self.random_split))
        elif self.stratify:
            raise InputError("stratify: is about a random split; pass random_split, such as 0.6,0.2,0.2")

    def grain(self, num_vertices: int) -> tuple[int, int]:
        """m and n for a graph of this size.

        >>> PreprocessConfig().grain(5000), PreprocessConfig().grain(10), PreprocessConfig().grain(3)
        ((4, 32), (4, 2), (3, 1))
        >>> PreprocessConfig(chunks="auto").grain(5000), PreprocessConfig(chunks=8).grain(20)
        ((4, 4), (2, 8))
        """
        named = self.chunks if isinstance(self.chunks, int) else 1
        m = self.partitions or max(1, min(PARTITIONS, num_vertices // named))
        most, vertices = (MAX_CHUNKS_AUTO, VERTICES_PER_CHUNK_AUTO) if self.chunks == "auto" else (CHUNKS, 1)
        return m, self.chunks if isinstance(self.chunks, int) else max(1, min(most, num_vertices // (m * vertices)))

    def settings(self) -> dict[str, Any]:
        """Everything that decides the artifact's content, for its manifest."""
        settings = asdict(self) | {"partitions": self.partitions or PARTITIONS, "chunks": self.chunks or CHUNKS}
        for name in ("as_paper", "memory", "force", "resume"):  # the first is what others were set to
            del settings[name]
        if not self.stratify:  # artifacts from before there was this have no such setting
            del settings["stratify"]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def spec_width(field: str, spec: Any, forms: tuple[str, ...]) -> int:
    """The number in ``random:8``; 0 for a form without one.

    >>> spec_width("features", "random:8", ("random:F", "degree"))
    8
    """
    if isinstance(spec, str):
        kind, colon, width = spec.partition(":")
        for form in forms:
            form_kind, form_colon, _ = form.partition(":")
            if kind == form_kind and colon == form_colon:
                if not colon:
                    return 0
                if width.isascii() and width.isdigit() and 0 < int(width[:11]) < 2**31 and len(width) < 11:
                    return int(width)
    raise InputError(f"{field}: {spec!r}, expected {' or '.join(forms)} with a positive number for the capital")


def parse_bytes(text: str | int, name: str = "size") -> int:
    """Bytes of a size such as "2GiB" or "500MB"; a bare number is bytes.

    Args:
        name: of the setting, for people.

    >>> parse_bytes("2GiB"), parse_bytes("1.5 KB"), parse_bytes("300")
    (2147483648, 1500, 300)

    Raises:
        InputError: when it is not a positive number with one of the units B, KB, MB, GB, TB, KiB, MiB, GiB, TiB; or a
            part of a byte, or so few in floating point that another unit was meant.
    """
    match = None if isinstance(text, int) else _BYTES.fullmatch(str(text).strip())
    unit = _UNITS.get(match[2].upper() or "B") if match else None
    number: float = text if isinstance(text, int) and not isinstance(text, bool) else 0
    if match and unit and math.isfinite(float(match[1]) * unit):
        number = float(match[1]) * unit
    size = int(number)
    if size <= 0 or (unit == 1 and size != number) or (isinstance(text, float) and size < 1024):
        also = "; only device_memory (--device-memory) may be a percentage" if str(text).strip().endswith("%") else ""
        if number:
            share = ", and '50%' half of what the run would take without a limit" if name == "device_memory" else ""
            also = f"; a number alone is bytes{share}"
        raise InputError(
            f"{name} {reprlib.repr(text)}: expected a positive number with a unit, such as 512MiB, 2GiB or 1.5GB{also}"
        )
    return size


def parse_share(text: object, name: str = "budget") -> float | None:
    """The share that a percentage says; None for what is none.

    Args:
        name: of the setting, for people.

    >>> parse_share("25%"), parse_share("25MB")
    (0.25, None)

    Raises:
        InputError: when it is not above 0 and at most 100.
    """
    if not isinstance(text, str) or not text.strip().endswith("%"):
        return None
    try:
        share = float(text.strip()[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"{name} {text!r}: expected a percentage from above 0 to 100")
    return share


class BudgetShare(int):
    """Bytes that were given as a ``share`` of ``whole`` bytes.

    >>> budget = BudgetShare.of(2048, 0.25)
    >>> budget, budget.share, budget.percent(205)
    (512, 0.25, '10.1%')
    """

    whole: int
    share: float

    @classmethod
    def of(cls, whole: int, share: float) -> BudgetShare:
        """So much of the whole."""
        found = cls(whole * share)
        found.whole, found.share = whole, share
        return found

    def percent(self, nbytes: int) -> str:
        """The least tenth of a percent of the whole that is enough for a number of bytes."""
        return f"{math.ceil(1000 * (nbytes + 1) / self.whole) / 10:g}%"


def size(nbytes: float, *, up: bool = False) -> str:
    """Bytes for people; ``up``: never less than they are, so that what is typed from it is enough.

    >>> size(1536), size(3 * 2**30), size(1025, up=True)
    ('1.5 KiB', '3.0 GiB', '1.1 KiB')
    """
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            number = nbytes / 1024**power
            return f"{math.ceil(number * 10) / 10 if up else number:.1f} {unit}"
    return f"{nbytes:.0f} B"


def in_bytes(nbytes: int) -> str:
    """Bytes to the last one, and for people.

    >>> in_bytes(100), in_bytes(16 * 2**20)
    ('100 bytes', '16777216 bytes (16.0 MiB)')
    """
    return f"{nbytes} bytes" + (f" ({size(nbytes)})" if nbytes >= 1024 else "")


def _integer(name: str, value: Any, least: int, also: str = "") -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number < 2**31:
        raise InputError(f"{name}: {value!r}, expected an integer from {least} to 2147483647{also}")
    return number


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name}: {value!r}, expected one of {', '.join(allowed)}")


def _columns(value: Any) -> tuple[str, ...]:
    """Two or three names, from a sequence or from "src,dst,weight"."""
    names = tuple(name.strip() for name in (value.split(",") if isinstance(value, str) else value))
    if len(names) not in (2, 3) or not all(names) or len(set(names)) < len(names):
        raise InputError(f"columns: {value!r}, expected two or three names, such as source,destination,weight")
    return names


def _parts(value: Any) -> tuple[Any, ...]:
    """Shares or numbers of train, val and test, from a sequence or from "0.6,0.2,0.2" or "20,30,rest"."""
    parts: tuple[Any, ...]
    try:
        given = value.split(",") if isinstance(value, str) else value
        of_rest = [k == 2 and part == "rest" for k, part in enumerate(given)]
        parts = tuple(part if rest else _number(part) for rest, part in zip(of_rest, given, strict=True))
    except (TypeError, ValueError):
        parts = ()
    shares = [part for part in parts if part != "rest" and part <= 1]
    if len(parts) != 3 or not parts[0] or sum(shares) > 1 + 1e-9:
        raise InputError(
            f"random_split: {value!r}, expected TRAIN,VAL,TEST, the first above 0: shares of sum at most 1, such as "
            "0.6,0.2,0.2, or numbers of vertices, such as 500,500,rest"
        )
    return parts


def _number(part: Any) -> float:
    """A share, or a number of vertices as an integer."""
    number = float(part)
    if not 0 <= number <= 1 and not (1 < number < 2**31 and number == int(number)):
        raise ValueError(part)
    return int(number) if number > 1 else number
