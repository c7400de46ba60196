"""A run: its directory, its log and its progress."""

from hongtu.preprocess.workspace.directory import LOG, Workspace

__all__ = ["LOG", "Workspace"]
