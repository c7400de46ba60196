"""A host too small is refused with what is needed."""

from __future__ import annotations

import pytest

from hongtu import host_memory
from hongtu.errors import InputError


def test_the_smaller_of_machine_and_control_group_counts(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2048 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert host_memory.available_bytes() == 1000 * 1024
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("100000\n")
    assert host_memory.available_bytes() == 400000
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory.available_bytes() == 1000 * 1024
    host_memory.check_host(1000 * 1024)
    with pytest.raises(InputError, match=r"needs 1024001 bytes.*1024000 are available"):
        host_memory.check_host(1000 * 1024 + 1)


def test_unknown_where_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path / "absent")
    assert host_memory.available_bytes() is None
    host_memory.check_host(1 << 60)
