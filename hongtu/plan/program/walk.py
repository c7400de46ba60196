"""The critical path of a pass: what its streams take together, each in its order, waiting where the program says so."""

from __future__ import annotations

from collections.abc import Mapping

from hongtu.plan.program import moves
from hongtu.plan.program.program import PassProgram

ROUNDS = 4  # of all sets that are walked; from then on every round takes as long as the last
STREAMS = ("load", "compute", "flush", "host", "disk", "dispatch")


def walk(p: PassProgram, streams: Mapping[str, float]) -> float:
    """Seconds of a pass.

    Args:
        streams: what its instructions take on every stream, without moves. Batches are taken to be alike; in one
            they follow one another between a stream's waits, so that the first is given the time of all.
    """
    batch = {stream: seconds / len(p.order) for stream, seconds in streams.items()}
    clock, turns, ends = dict.fromkeys(STREAMS, 0.0), [dict.fromkeys(moves.EVENTS, 0.0) for _ in range(p.sets)], [0.0]
    for step in range(min(len(p.order), ROUNDS * p.sets)):
        turn, left = turns[step % p.sets], dict(batch)
        for x in p.body:
            if isinstance(x, moves.Wait):
                clock[x.stream] = max(clock[x.stream], turn[x.event])
            elif isinstance(x, moves.Follow):
                clock[x.stream] = max(clock[x.stream], clock[x.other])
            elif isinstance(x, moves.Signal):
                turn[x.event] = clock[x.stream]
            elif x.on in ("load", "compute", "flush"):
                clock[x.on] += left.pop(x.on, 0.0)
                if x.on == "flush":  # and the host takes what has arrived
                    clock["host"] = max(clock["host"], clock["flush"]) + left.pop("host", 0.0)
        ends.append(max(clock.values()))
    beyond = len(p.order) - (len(ends) - 1)
    return ends[-1] + beyond * (ends[-1] - ends[-1 - p.sets]) / p.sets if beyond else ends[-1]
