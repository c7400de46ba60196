"""What the fuzzer must know of something that reads a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.neutral import pieces, write


def neutral(directory: Path) -> None:
    """A valid graph in the neutral format."""
    write(directory, pieces())


@dataclass(frozen=True)
class Reader:
    """A reader and how to check it.

    Attributes:
        file: name of the file, in a directory that holds the rest of a graph.
        samples: valid contents.
        read: from the file's path to arrays and plain values.
        meaning: from bytes to what ``read`` must give where it gives anything.
        remove: files of the graph that must not be there beside it.
        graph: makes the rest of the graph in a new directory.
        pack: from the content, which is damaged, to the bytes of the file.
        arguments: of `hongtu preprocess`, where it can read the directory.
    """

    file: str
    samples: tuple[bytes, ...]
    read: Callable[[Path], Any]
    meaning: Callable[[bytes], Any]
    remove: tuple[str, ...] = ()
    graph: Callable[[Path], object] = neutral
    pack: Callable[[bytes], bytes] = bytes
    arguments: tuple[str, ...] | None = ()
