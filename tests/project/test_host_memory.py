"""A host too small is refused with what is needed."""

from __future__ import annotations

import pytest

from hongtu import host, threads
from hongtu.errors import InputError


def test_the_smaller_of_machine_and_control_group_counts(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2048 kB\nMemAvailable:    1000 kB\n")
    monkeypatch.setattr(host, "MEMINFO", meminfo)
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    assert host.available_bytes() == 1000 * 1024
    (tmp_path / "memory.max").write_text("500000\n")
    (tmp_path / "memory.current").write_text("100000\n")
    (tmp_path / "memory.stat").write_text("anon 30000\ninactive_file 20000\n")
    assert host.available_bytes() == 420000
    (tmp_path / "memory.max").write_text("max\n")
    assert host.available_bytes() == 1000 * 1024
    host.check_host(1000 * 1024)
    with pytest.raises(InputError, match=r"needs 1024001 bytes.*1024000 are available"):
        host.check_host(1000 * 1024 + 1)


@pytest.mark.parametrize(
    ("line", "root", "names"),
    [
        ("0::/a/b", ".", ("memory.max", "memory.current", "inactive_file")),
        ("4:cpu,memory:/a/b", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_control_groups_around_the_own_one_count(line, root, names, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    monkeypatch.setattr(threads, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text(f"1:name=systemd:/x\n{line}\n")
    for group, limit in (("", "max"), ("a", "900"), ("a/b", "1000")):
        directory = tmp_path / root / group
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in zip(names, (limit, "300", None), strict=True):
            if content is not None:
                (directory / name).write_text(content)
        (directory / "memory.stat").write_text(f"{names[2]} 50\n")
    assert host.available_bytes() == 900 - 300 + 50


def test_unknown_where_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(threads, "CGROUP", tmp_path / "absent")
    assert host.available_bytes() is None
    host.check_host(1 << 60)
