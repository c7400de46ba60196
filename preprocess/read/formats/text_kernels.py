"""Lines of text to spans of their fields, and spans to arrays of fields.

Legend: L edge lines of a block; a span is a pair of offsets (start, end) in the block.
"""

from __future__ import annotations

import numpy as np

from hongtu.compiled import compiled

NEWLINE, SPACE, TAB, RETURN, QUOTE, HASH, PERCENT, UNDERSCORE = 10, 32, 9, 13, 34, 35, 37, 95
COLUMNS, EMPTY, QUOTED = 1, 2, 3  # what may be wrong with a line


@compiled(plain=True)
def split(text, delimiter, wanted, count, comments):
    """Spans of three columns of every edge line; stops at the first line that is wrong.

    Args:
        text: uint8, whole lines, each ending with a newline.
        delimiter: byte between columns, or 0 for white space.
        wanted: int64 [3], positions of the columns; -1 for one that is not wanted.
        count: columns that a line must have, or -1 for any number.
        comments: pass over lines that start with # or %.

    Returns:
        spans int32 [3, 2, L], lines int32 [L] (counted from 0), how many comments there were, and the fault: its line
        (-1 for none), kind, and the columns of that line.
    """
    room = 0
    for at in range(len(text)):
        room += text[at] == NEWLINE
    spans = np.zeros((3, 2, room), dtype=np.int32)
    lines = np.empty(room, dtype=np.int32)
    edges, line, at, passed = 0, 0, 0, 0
    while at < len(text):
        while text[at] == SPACE or text[at] == RETURN or (text[at] == TAB and delimiter != TAB):
            at += 1
        comment = comments and (text[at] == HASH or text[at] == PERCENT)
        if comment or text[at] == NEWLINE:
            passed += comment
            while text[at] != NEWLINE:
                at += 1
            at += 1
            line += 1
            continue
        column = 0
        while True:  # one field a round
            start = at
            while text[at] != NEWLINE and not _separates(text[at], delimiter):
                if text[at] == QUOTE:
                    return spans, lines, passed, line, QUOTED, column
                at += 1
            end = at
            while end > start and (
                text[end - 1] == SPACE or text[end - 1] == RETURN or (text[end - 1] == TAB and delimiter != TAB)
            ):
                end -= 1
            while start < end and (text[start] == SPACE or (text[start] == TAB and delimiter != TAB)):
                start += 1
            for k in range(3):
                if wanted[k] == column:
                    if start == end:
                        return spans, lines, passed, line, EMPTY, column
                    spans[k, 0, edges] = start
                    spans[k, 1, edges] = end
            column += 1
            if delimiter == 0:
                while text[at] != NEWLINE and _separates(text[at], delimiter):
                    at += 1
                if text[at] == NEWLINE:
                    break
            elif text[at] == NEWLINE:
                break
            else:
                at += 1
        if (count >= 0 and column != count) or column <= max(wanted[0], wanted[1], wanted[2]):
            return spans, lines, passed, line, COLUMNS, column
        lines[edges] = line
        edges += 1
        at += 1
        line += 1
    return spans[:, :, :edges], lines[:edges], passed, -1, 0, 0


@compiled(inline="always")
def _separates(byte, delimiter):
    if delimiter == 0:
        return byte in (SPACE, TAB, RETURN)
    return byte == delimiter


@compiled(plain=True)
def to_fields(text, start, end, width):
    """uint8 [L, width], each span padded with zeros, and the first that is wider (-1 for none), or holds what Python
    takes in a number and no file means by one."""
    fields = np.zeros((len(start), width), dtype=np.uint8)
    for k in range(len(start)):
        if end[k] - start[k] > width:
            return fields, k
        for at in range(start[k], end[k]):
            if text[at] == UNDERSCORE or text[at] == 0:
                return fields, k
            fields[k, at - start[k]] = text[at]
    return fields, -1
