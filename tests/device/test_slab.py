"""One block of memory for all planned buffers."""

from __future__ import annotations

import pytest
import torch

from hongtu.device.pool import Slab

F = torch.float32


@pytest.fixture
def slab():
    made = Slab(torch.zeros(2048, dtype=torch.uint8))
    made.start = made._memory.data_ptr()
    return made


def test_a_pass_stacks_its_buffers_above_what_stays(slab):
    stays = slab.place("a", 256, (3, 5), F)
    above = [slab.stack((2, 7), torch.int64), slab.stack((1,), torch.uint8)]
    assert [x.data_ptr() - slab.start for x in (stays, *above)] == [256, 512, 768] and slab.most == 1024
    assert stays.shape == (3, 5) and stays.is_contiguous() and above[0].dtype == torch.int64
    slab.unstack()
    assert slab.stack((1,), F).data_ptr() == above[0].data_ptr()
    slab.unstack()
    slab.remove("a")
    assert slab.stack((1,), F).data_ptr() == slab.start and slab.most == 1024


def test_a_tensor_does_not_notice_that_another_is_written_to(slab):
    """As it would if both were views of one: autograd would refuse what it saved of the first."""
    first, second = (slab.stack((4,), F) for _ in range(2))
    version = first._version
    second.fill_(1.0)
    assert first._version == version and second.tolist() == [1.0] * 4 and first.tolist() == [0.0] * 4


def test_what_is_not_planned_is_refused(slab):
    slab.stack((256,), torch.int64)
    with pytest.raises(AssertionError, match="2304"):
        slab.stack((1,), torch.uint8)
    with pytest.raises(AssertionError, match="a pass has its buffers"):
        slab.place("late", 0, (1,), F)
