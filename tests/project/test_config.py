from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest

from hongtu.config import PARTITIONERS, PreprocessConfig, parse_bytes
from hongtu.errors import InputError


@pytest.mark.parametrize(
    "text, size",
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("1KiB", 1024),
        ("1TiB", 1 << 40),
        ("2GB", 2 * 10**9),
        ("3MB", 3 * 10**6),
        ("1.5KB", 1500),
        ("7B", 7),
        ("7", 7),
        (7, 7),
        (" 2 gib ", 2 << 30),
        (".5MiB", 1 << 19),
        ("1.KiB", 1024),
    ],
)
def test_parse_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1GiB", "0", "0.1B", "2G", "2 Gib/s", "1e9", "nan", "inf", "2,5GiB", "9" * 308 + "TiB", True, None],
)
def test_parse_bytes_refuses_nonsense(text):
    with pytest.raises(InputError, match="512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "field, value",
    [
        ("partitions", 0),
        ("partitions", -1),
        ("partitions", 1.5),
        ("partitions", True),
        ("chunks", 0),
        ("chunks", "many"),
        ("chunks", 2**31),
        ("partitioner", "best"),
        ("order", "random"),
        ("seed", -1),
        ("seed", 2**31),
        ("split", -1),
        ("undirected", 1),
        ("force", "yes"),
        ("features", "random"),
        ("features", "random:0"),
        ("features", "random:x"),
        ("features", "degree:3"),
        ("features", "embedding:0"),
        ("features", 8),
        ("labels", "random:-1"),
        ("labels", "degree"),
        ("random_split", (0.5, 0.5)),
        ("random_split", (0, 0.5, 0.5)),
        ("random_split", (0.8, 0.2, 0.2)),
        ("random_split", "a,b,c"),
        ("random_split", (0.5, -0.1, 0.2)),
        ("random_split", 0.6),
        ("random_split", "nan,0,0"),
        ("random_split", "rest,0.2,0.2"),
        ("random_split", "20.5,30,rest"),
        ("random_split", "-2,30,rest"),
        ("stratify", True),
        ("task", "link"),
    ],
)
def test_refused(field, value):
    with pytest.raises(InputError, match=field):
        PreprocessConfig(**{field: value})


def test_embeddings_are_learned_not_normalized():
    assert PreprocessConfig(features="embedding:16").embedding == 16
    assert PreprocessConfig(features="random:16").embedding == 0
    with pytest.raises(InputError, match="normalize_features"):
        PreprocessConfig(features="embedding:16", normalize_features=True)


def test_accepted_forms():
    config = PreprocessConfig(
        partitions=np.int64(2), random_split="0.6,0.2,0.2", features="random:7", labels="random:3"
    )
    assert type(config.partitions) is int
    assert config.random_split == (0.6, 0.2, 0.2)
    assert PreprocessConfig(random_split=[0.1, 0, 0]).random_split == (0.1, 0.0, 0.0)
    assert PreprocessConfig(random_split="20,30,rest", stratify=True).random_split == (20, 30, "rest")


def test_as_paper_sets_what_the_published_system_has():
    config = PreprocessConfig(as_paper=True)
    assert (config.partitioner, config.order) == ("metis", "input")
    assert config.settings() == PreprocessConfig(partitioner="metis", order="input").settings()
    for other in ({"partitioner": "range"}, {"order": "recursive"}, {"chunks": "auto"}):
        with pytest.raises(InputError, match=f"as_paper: {next(iter(other))}"):
            PreprocessConfig(as_paper=True, **other)


@pytest.mark.parametrize("vertices, chunks", [(1, 1), (1023, 1), (2048, 2), (10**7, 512)])
def test_auto_chunks(vertices, chunks):
    assert PreprocessConfig(partitions=4, chunks="auto").grain(vertices) == (4, chunks)


def test_every_field_is_documented():
    for field in fields(PreprocessConfig):
        assert f"\n    {field.name}: " in inspect.getdoc(PreprocessConfig), field.name


def test_partitioners_are_those_of_the_registry():
    from hongtu.preprocess.partition import PARTITIONERS as registry

    assert set(PARTITIONERS) == {"auto", *registry}
