"""A device-memory budget as people give it, in bytes."""

from __future__ import annotations

from collections.abc import Callable

from hongtu.config import BudgetShare, parse_bytes, parse_share
from hongtu.errors import BudgetError
from hongtu.plan.execution import ExecutionPlan


def budget_bytes(device_memory: int | str | None, plan: Callable[[int | None], ExecutionPlan]) -> int | None:
    """Bytes per device, or None for no limit.

    Args:
        device_memory: bytes, a size such as "2GiB", or a share such as "50%" of what the largest device is likely to
            hold without a limit; all of it is enough in any case.
        plan: within so many bytes, or without a limit; only a share asks for it.

    Raises:
        InputError: for what is none of these.
    """
    if isinstance(device_memory, BudgetShare):
        return device_memory
    share = parse_share(device_memory)
    if share is None:
        return None if device_memory is None else parse_bytes(device_memory)
    whole = plan(None).likely_bytes
    if share == 1:
        try:
            plan(whole)
        except BudgetError as refused:  # a bound on what layers take in chunks may be beyond what they take of all
            whole = refused.smallest
    return BudgetShare.of(whole, share)
