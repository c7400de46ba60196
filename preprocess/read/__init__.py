"""Stage 1: read a graph in the neutral format, or from arrays, and refuse what is wrong with it before any work."""

from hongtu.preprocess.read.arrays import from_arrays
from hongtu.preprocess.read.directory import read_directory
from hongtu.preprocess.read.graph import RawGraph
from hongtu.preprocess.read.synthesize import synthesize_features

__all__ = ["RawGraph", "from_arrays", "read_directory", "synthesize_features"]
