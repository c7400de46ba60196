"""What the names of an edge table's columns say: which are the ends of an edge, its weight and its type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hongtu.errors import InputError

STANDARD = ("source", "destination", "weight")
# what tools call the ends of an edge, a pair a line: the first line of which a file has one name each
ENDS = (
    ({"source", "src", "from"}, {"target", "destination", "dest", "dst", "trg", "tgt", "to"}),
    ({"subject", "subj"}, {"object", "obj"}),
    ({"head"}, {"tail"}),
    ({"start"}, {"end"}),
    ({"sender", "citing", "follower", "parent"}, {"receiver", "recipient", "cited", "followee", "child"}),
)
# whole names, of which only letters count
RELATION = re.compile(
    r"(?:edge|link|e)?(?:relation(?:ship)?|rel|predicate|pred|property|prop|type|label|kind)"
    r"(?:type|label|name|id|idx|index|ur[il]|iri|s)*"
)
WEIGHT = re.compile(
    r".*(?:weight|value|score|dist|length|cost|count|strength|similarity|capacity|amount|rating|freq|prob|confidence).*"
    r"|e?wt?s?|vals?|sim|corr(?:elation)?"
)
LETTERS = {"r": ("h", "head"), "p": ("s", "subject")}  # only beside such a source: r may be a correlation
PAIRED = (("h", "t"), ("s", "o"), ("s", "t"))  # as h, r, t and s, p, o
FIRST_OF_TWO = "uix1a"  # last letters of names that come in pairs: u and v, node_1 and node_2
INDEX = ("", "Unnamed: 0")  # what pandas and R call a column with the number of each row
WHAT = re.compile(r"(?:id|idx|index|node|vertex|entity|user|paper|name|key|label|uri)$|^(?:id|node|vertex|entity)")


def find_ends(words: list[str]) -> tuple[int, int] | None:
    """Positions of the columns whose names say that they are an edge's ends, source first.

    >>> find_ends(["id", "src_id", "dst_id"]), find_ends([":START_ID", ":END_ID"]), find_ends(["ann", "bob"])
    ((1, 2), (0, 1), None)
    """
    plain = [_plain_name(word) for word in words]
    for sources, destinations in ENDS:
        found = [[at for at, name in enumerate(plain) if name in names] for names in (sources, destinations)]
        if len(found[0]) == len(found[1]) == 1:
            return found[0][0], found[1][0]
    return None


def is_relation(names: Sequence[str] | None, *, text: bool = False) -> bool:
    """Whether the third of the columns that are to be read has types of edges, and no weights: its name says so, or it
    holds ``text`` and its name does not say that it has weights.

    >>> is_relation(["head", "tail", "relation_id"]), is_relation(["u", "v", "w"]), is_relation(None)
    (True, False, False)
    >>> is_relation(["h", "t", "r"]), is_relation(["gene", "other", "r"]), is_relation(["a", "b", "c"], text=True)
    (True, False, True)
    """
    if names is None or len(names) != 3:
        return False
    name = _letters(names[2])
    if RELATION.fullmatch(name) or _letters(names[0]) in LETTERS.get(name, ()):
        return True
    return text and not is_weight(names[2])


def is_weight(name: str) -> bool:
    """Whether a column's name says that it holds weights.

    >>> is_weight("w"), is_weight("combined_score"), is_weight("year")
    (True, True, False)
    """
    return bool(WEIGHT.fullmatch(_letters(name)))


def check_order(path: Path, names: Sequence[str] | None) -> None:
    """Refuse three names of which the third is an end of an edge, as triples have it: it would be read as the type.

    Raises:
        InputError: with the order in which they are read.
    """
    ends = find_ends([*names]) or find_paired_ends([*names]) if names is not None and len(names) == 3 else None
    if names is None or ends is None or 2 not in ends:
        return
    read = [names[at] for at in (*ends, 3 - sum(ends))]
    if is_relation(read) or is_weight(read[2]):
        raise InputError(
            f"{path}: columns {', '.join(names)}, expected source, destination and the type or weight of each edge, "
            f"whatever their order in the file; pass --columns {','.join(read)}"
        )


def find_weights(path: Path, words: Sequence[str]) -> list[str]:
    """The column that is called weight, or in another case where none is, if there is one.

    >>> find_weights(Path("edges.csv"), ["Source", "Target", " Weight"])
    [' Weight']

    Raises:
        InputError: where there are several.
    """
    own = [word for word in words if word == "weight"] or [word for word in words if word.strip().lower() == "weight"]
    if len(own) > 1:
        shown = " and ".join(map(repr, dict.fromkeys(own)))
        remedy = (
            f"; --columns SOURCE,DESTINATION,{own[0].strip()} takes the first" if own[0] != own[1] else "; rename one"
        )
        raise InputError(f"{path}: {len(own)} columns {shown}, expected one, found {', '.join(words)[:200]}{remedy}")
    return own


def _letters(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())


def say_third(path: Path, names: Sequence[str], *, typed: bool) -> list[str]:
    """A note on a third column whose name does not say what it holds."""
    if len(names) < 3 or is_relation(names) or is_weight(names[2]):
        return []
    if typed:
        return [f"{path}: column {names[2]!r} holds text, and is read as the type of each edge"]
    return [f"{path}: column {names[2]!r} is read as weights; if it has the type of each edge, rename it to 'relation'"]


def say_unread(path: Path, words: Sequence[str], read: Sequence[str]) -> list[str]:
    """Notes on the first column of types that is not read, without weights on the first that may hold some, and without
    types on a tail before its head: of an arc the tail may be the source."""
    others = [word for word in words if word not in read]
    kinds = [word for word in others if is_relation([*read[:2], word])]
    weights = [word for word in others if is_weight(word) and word not in kinds] if len(read) < 3 else []
    ends, said = [_plain_name(word) for word in read[:2]], []
    if ends == ["head", "tail"] and words.index(read[0]) > words.index(read[1]) and not kinds:
        said.append(
            f"{path}: column {read[0]!r} is read as the source and {read[1]!r} as the destination, as of triples; "
            f"where edges go from tail to head pass --columns {','.join((read[1], read[0], *read[2:]))}"
        )
    return said + [
        f"{path}: column {found[0]!r} is not read; --columns {','.join((*read[:2], found[0]))} takes it as {what}"
        for found, what in ((kinds, "the type of each edge"), (weights, "weights"))
        if found
    ]


def _plain_name(word: str) -> str:
    name, before = re.sub(r"\(.*\)|[^a-z0-9]", "", word.lower()), ""
    while name != before:
        before, name = name, WHAT.sub("", name) or name
    return name


def find_paired_ends(words: list[str]) -> tuple[int, int] | None:
    """As :func:`find_ends`, of names that may be vertices' own: "u" and "v", "node_1" and "node_2"; and of any two
    beside numbers of rows."""
    plain = [re.sub(r"[^a-z0-9]", "", word.lower()) for word in words]
    for at, name in enumerate(plain):
        other = name[:-1] + chr(ord(name[-1]) + 1) if name else ""
        counted = name == "1" and "0" in plain  # as pandas names columns
        if other and not counted and name[-1] in FIRST_OF_TWO and plain.count(name) == plain.count(other) == 1:
            return at, plain.index(other)
    found = [(plain.index(a), plain.index(b)) for a, b in PAIRED if plain.count(a) == plain.count(b) == 1]
    found += [(1, 2)] * (len(words) == 3 and words[0] in INDEX)
    return found[0] if found else None


def suggest_ends(words: list[str]) -> list[str]:
    """Two columns that may be the ends of an edge, by what their names do not say.

    >>> suggest_ends(["", "weight", "a", "type", "b"])
    ['a', 'b']
    """
    others = [word for word in words if word not in INDEX and not is_weight(word) and not is_relation(["", "", word])]
    return (others if len(others) > 1 else words)[:2]


def position(path: Path, found: Sequence[str], name: str) -> int:
    """Where the column of a name is.

    Raises:
        InputError: where there is none, or there are several.
    """
    if found.count(name) != 1:
        what = f"{found.count(name)} columns {name!r}, expected one" if name in found else f"no column {name!r}"
        shown = ", ".join(found)[:200] or "none"
        raise InputError(f"{path}: {what}, found {shown}; name others with --columns SOURCE,DESTINATION")
    return found.index(name)
