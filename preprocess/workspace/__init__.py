"""A run: its directory, its log and its progress."""

from hongtu.preprocess.workspace.directory import Workspace
from hongtu.preprocess.workspace.origin import check_origin, input_hash

__all__ = ["Workspace", "check_origin", "input_hash"]
