"""A device-memory budget as people give it, in bytes."""

from __future__ import annotations

from collections.abc import Callable

from hongtu.config import BudgetShare, parse_bytes, parse_share
from hongtu.plan.execution import ExecutionPlan


def budget_bytes(device_memory: int | str | None, unlimited: Callable[[], ExecutionPlan]) -> int | None:
    """Bytes per device, or None for no limit.

    Args:
        device_memory: bytes, a size such as "2GiB", or a share such as "50%" of what the largest device is likely to
            hold without a limit.
        unlimited: the plan without a limit, which only a share asks for.

    Raises:
        InputError: for what is none of these.
    """
    if isinstance(device_memory, BudgetShare):
        return device_memory
    share = parse_share(device_memory)
    if share is None:
        return None if device_memory is None else parse_bytes(device_memory)
    return BudgetShare.of(unlimited().likely_bytes, share)
