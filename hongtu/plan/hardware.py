"""What a machine's links and memory can do; the planner compares plans by it."""

from __future__ import annotations

from dataclasses import dataclass

from hongtu.metrics import Traffic


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Rates of one machine.

    Attributes:
        name: for people.
        host_link: bytes per second between host and one device, sparse rows.
        contiguous_link: the same for contiguous rows.
        peer_link: bytes per second between two devices.
        stage_seconds: fixed cost of running one chunk of one pass.
    """

    name: str
    host_link: float
    contiguous_link: float
    peer_link: float
    stage_seconds: float

    def seconds(self, traffic: Traffic, stages: int) -> float:
        """Time that transfers and dispatch take, one after the other."""
        moved = traffic.bytes
        return (
            (moved["load"] + moved["flush"]) / self.host_link
            + (moved["read"] + moved["write"] + moved["topology"]) / self.contiguous_link
            + (moved["pull"] + moved["push"]) / self.peer_link
            + stages * self.stage_seconds
        )


CPU = Hardware(name="cpu", host_link=4e9, contiguous_link=8e9, peer_link=4e9, stage_seconds=5e-4)
