"""What joins ranks is measured between them."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from hongtu.errors import InputError
from hongtu.hardware import CPU
from hongtu.ranks import fabric
from hongtu.ranks.fabric import load_fabric, over
from hongtu.ranks.together import Alone
from tests.ranks.test_processes import result_on
from tests.ranks.turns import TurnRanks, run_ranks

MEGA = 1e6
HOSTS = ["a", "a", "b", "b", "c", "c"]
OUT = {"a": 40 * MEGA, "b": 30 * MEGA, "c": 90 * MEGA}  # bytes per second of network cards
INTO = {"a": 50 * MEGA, "b": 80 * MEGA, "c": 20 * MEGA}
MEMORY = 500 * MEGA


class Timed(TurnRanks):
    """Ranks of hosts on a network that takes as long as its cards say; two ranks share each."""

    clock = 0.0

    def gather(self, value):
        return super().gather(HOSTS[self.rank] if isinstance(value, str) else value)

    def end(self, begun):
        for rank, pieces in Counter(rank for rank, _ in begun).items():
            giver, taker = HOSTS[rank], HOSTS[self.rank]
            rate = MEMORY if giver == taker else min(OUT[giver], INTO[taker])
            self.clock += 2 * pieces * fabric.PIECE / rate
        super().end(begun)


def test_every_hop_gets_what_it_carries(monkeypatch, tmp_path):
    """That of the fastest that it gives to, or takes from."""

    def measure(ranks):
        monkeypatch.setattr(fabric, "perf_counter", lambda: clocks[turn()].clock)
        clocks[ranks.rank] = ranks
        turn = lambda: ranks.room.whose  # noqa: E731
        return fabric.measure_topology(ranks)

    clocks = {}
    found = run_ranks(len(HOSTS), measure, Timed)
    assert all(each == found[0] for each in found)
    expected = {f"{a} out": max(min(OUT[a], INTO[b]) for b in OUT if b != a) for a in OUT}
    expected |= {f"{b} in": max(min(OUT[a], INTO[b]) for a in OUT if a != b) for b in OUT}
    assert found[0]["hops"] == pytest.approx(expected | {f"{a} memory": MEMORY for a in OUT}, rel=1e-6)
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(found[0]))
    measured = load_fabric(file, len(HOSTS), CPU)
    assert measured.paths[0, 2] == ("a out", "b in") and measured.paths[2, 3] == ("b memory",)
    assert over(measured, CPU).network_link == pytest.approx(20 * MEGA) and over(None, CPU) is CPU


def test_a_process_alone_has_nothing_to_measure(capsys):
    from hongtu.cli.main import main

    assert main(["doctor", "--measure-links", "file"]) == 2
    assert "this process is alone" in capsys.readouterr().err
    assert main(["doctor", "--measure-links", "file", "--measure"]) == 2
    assert fabric.measure_topology(Alone()) == {"hops": {}, "paths": {}}


@pytest.mark.long
def test_torchrun_measures(tmp_path):
    file = tmp_path / "topology.json"
    said = result_on(2, tmp_path, "doctor", "--measure-links", str(file))
    assert said == json.loads(file.read_text())
    assert min(said["hops"].values()) > 0
    with pytest.raises(InputError, match="no path for"):
        load_fabric(file, 3, CPU)
    assert set(load_fabric(file, 2, CPU).paths) == {(0, 1), (1, 0)}
