"""What ranks tell each other arrives as it was, to the bit, and what is no message of theirs is refused by name."""

from __future__ import annotations

import gc
import json
import math
import os
import pickle
import struct
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from hongtu.errors import InputError
from hongtu.ranks.wire import DTYPES, FRAME, FRONT, LONGEST_HEAD, MAGIC, Whereabouts, decode, encode, pack, unpack
from hongtu.ranks.words import _heard

VALUES = [
    None, True, False, 0, -1, 2**80, "", "é\ud800\n", b"", b"\x00\xff", 1.5, -0.0, 5e-324, 0.1 + 0.2, math.inf, 1 - 2j,
    [], (), {}, [1, (2, [3.0, {"a": (None,)}])], {1: "one", (2, "two"): b"2", None: 0.5, "tensor": [1]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_plain_values_arrive(value):
    found = decode(encode(value), "rank 1")
    assert found == value and type(found) is type(value)
    assert math.copysign(1, found) == math.copysign(1, value) if isinstance(value, float) else True


def test_numbers_that_are_none_arrive():
    assert math.isnan(decode(encode(math.nan), "rank 1"))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0, 2), (5, 7)])
def test_tensors_arrive(shape):
    """Of every dtype, one behind the other, whatever their bytes add up to."""
    generator = torch.Generator().manual_seed(0)
    sent = {
        name: torch.randint(2, shape, generator=generator).to(dtype) if shape != (5, 7) or dtype == torch.bool
        else torch.randint(256, (*shape, dtype.itemsize), generator=generator).to(torch.uint8).view(dtype)[..., 0]
        for name, dtype in DTYPES.items()
    }  # fmt: skip
    found = decode(encode(sent), "rank 1")
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert found[name].numpy(force=True).tobytes() if name == "" else encode(found[name]) == encode(tensor)
    found["float32"].fill_(3)  # a copy that may be written to


def test_arrays_and_views_arrive():
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2]
    found = decode(encode((array, torch.arange(12).view(3, 4).t(), np.float32(0.1), np.int64(3))), "rank 1")
    np.testing.assert_array_equal(found[0], array)
    assert found[0].dtype == np.int32 and torch.equal(found[1], torch.arange(12).view(3, 4).t())
    assert found[2:] == (float(np.float32(0.1)), 3)


def test_a_state_dict_keeps_the_versions_of_its_modules():
    """Else torch takes what it loads for one of an older version."""
    sent = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict()
    found = decode(encode(sent), "rank 1")
    assert isinstance(found, OrderedDict) and found._metadata == sent._metadata
    assert list(found) == list(sent) and all(torch.equal(found[name], sent[name]) for name in sent)


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.nn.Linear(1, 1), lambda: 0, np.array(["a"])])
def test_what_is_no_plain_value_is_not_sent(value):
    with pytest.raises(InputError, match="cannot be sent; expected tensors and plain values"):
        encode({"a": [value]})


def test_a_message_goes_when_it_has_been_read():
    """Not when Python looks for circles of references: it may be as long as all that is learned."""

    class Message(bytearray):
        pass

    gc.disable()
    try:
        message = Message(encode({"rows": torch.ones(1000), "state": OrderedDict(a=(1, 2.0, b"x", 1j, np.ones(3)))}))
        kept = weakref.ref(message)
        found = decode(message, "rank 1")
        del message
        assert kept() is None and found["rows"].sum() == 1000
    finally:
        gc.enable()


class Evil:
    def __reduce__(self):
        return os._exit, (9,)


def message(content, rest=b""):
    """By hand."""
    text = json.dumps(content).encode() if not isinstance(content, bytes) else content
    part = len(text).to_bytes(8, "big") + text
    return part.ljust(-(-len(part) // 16) * 16, b"\0") + rest


STRANGE = {
    "a pickle": pickle.dumps(Evil()), "nothing": b"", "half a length": b"\0\0\0", "a length of its own": b"\xff" * 16,
    "no JSON": message(b"{1"), "too deep": message(b"[" * 100_000), "no text": message(b"\xff\xfe"),
    "an unknown kind": message({"pickle": "gA=="}), "two kinds": message({"tuple": [], "dict": []}),
    "no kind": message({}), "a dtype": message({"tensor": ["object", [1]]}, bytes(16)),
    "a negative size": message({"tensor": ["uint8", [-1]]}),
    "a size that is none": message({"tensor": ["uint8", [1.0]]}),
    "too few bytes": message({"tensor": ["float64", [3]]}, bytes(16)),
    "more than memory": message({"tensor": ["float64", [2**62, 2**62]]}, bytes(16)),
    "a shape that is none": message({"array": ["float64", 3]}), "pairs that are none": message({"dict": [[1]]}),
    "a key that is none": message({"dict": [[{"dict": []}, 1]]}), "bytes that are none": message({"bytes": "*"}),
    "a complex of text": message({"complex": ["one", 2]}), "metadata": message({"state_dict": [1]}),
    "a number that is none": message({"complex": [10**400, 0]}),
    "a size beyond all numbers": message({"tensor": ["float32", [0, 10**30]]}),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_message_is_refused(name):
    with pytest.raises(InputError, match=r"^rank 1 sent what is no message of hongtu .*start every rank with the same"):
        decode(STRANGE[name], "rank 1")


PLACE = Whereabouts("train_epoch inside fit", 3, 17, "gather")


@pytest.mark.parametrize("length", [0, 1, 3000, FRAME, 10 * FRAME])
def test_frames_have_one_length(length):
    frame = pack(PLACE, bytes(range(256)) * (length // 256 + 1))
    place, size, inside = unpack(frame, "rank 1")
    assert len(frame) == FRAME and place == PLACE and size == 256 * (length // 256 + 1)
    assert (inside is None) == (size > 3500) and (inside is None or bytes(inside[:256]) == bytes(range(256)))
    assert unpack(pack(Whereabouts("é" * 5000, 1, 1, "gather"), b""), "rank 1")[0].method == "é" * 40


@pytest.mark.parametrize(
    "frame",
    [bytes(FRAME), pickle.dumps(Evil()).ljust(FRAME, b"\0"), MAGIC.ljust(FRAME, b"\0"),
     (FRONT.pack(MAGIC, LONGEST_HEAD + 1, 0)).ljust(FRAME, b"\0"),
     (FRONT.pack(MAGIC, 14, 0) + b'["fit",1,"2",3]').ljust(FRAME, b"\0"),
     (FRONT.pack(MAGIC, 9, 2**63) + b'["fit",1]').ljust(FRAME, b"\0"), struct.pack("!4096s", b"{" * FRAME)],
)  # fmt: skip
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(InputError, match="rank 1 sent what is no frame of hongtu"):
        unpack(frame, "rank 1")


@pytest.mark.parametrize(
    "word", [b"", b"[]", b"{}", b"[1, 2, 3, 4]", b'[1, "rank 1", "", "dances"]', b"\xff", pickle.dumps(Evil())]
)
def test_words_of_a_pulse_that_are_none_are_not_heard(word):
    assert _heard(word) is None


def test_words_do_not_steer_a_terminal():
    assert _heard(json.dumps([1, "rank 1\x1b[2J", "in pass 'a'\n", "works"]).encode()) == (
        1, "rank 1?[2J", "in pass 'a'?", "works",
    )  # fmt: skip
