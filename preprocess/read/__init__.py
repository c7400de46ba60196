"""Read a graph in any format, or from arrays, and refuse what is wrong with it before any work."""

from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.graph import SPLIT_NAMES, SPLITS, RawGraph, features_of, to_pieces
from hongtu.preprocess.read.open import from_arrays, read_data, read_input
from hongtu.preprocess.read.size import Reading, Sizes
from hongtu.preprocess.read.synthesize import synthesize_features

__all__ = [
    "SPLITS",
    "SPLIT_NAMES",
    "RawGraph",
    "Reading",
    "Sizes",
    "features_of",
    "from_arrays",
    "read_data",
    "read_directory",
    "read_input",
    "synthesize_features",
    "to_pieces",
]  # fmt: skip
