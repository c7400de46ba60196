"""Progress bars: in a terminal, in a notebook, or not at all."""

from __future__ import annotations

import sys
import warnings

from tqdm import TqdmWarning

from hongtu.errors import has_stderr

warnings.filterwarnings("ignore", "IProgress not found", TqdmWarning)  # the notebook then shows a line of text

from tqdm.auto import tqdm as bar  # noqa: E402 - it warns when it is imported

__all__ = ["bar", "hidden"]


def hidden(progress: bool | None) -> bool | None:
    """``disable`` as tqdm wants it; where nothing is asked for, bars are shown in terminals and notebooks, and none is
    where the process has no standard error to show it on.

    >>> hidden(True), hidden(False)
    (False, True)
    """
    if not has_stderr():
        return True
    if progress is not None:
        return not progress
    kernel = sys.modules.get("ipykernel.kernelapp")  # others import it to run notebooks
    return False if kernel is not None and kernel.IPKernelApp.initialized() else None
