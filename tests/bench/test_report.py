"""``hongtu report``: one page with every figure and table, which a browser shows without asking anyone for anything."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from experiments import page as bench_page
from hongtu.bench.report import page
from hongtu.cli.main import main as command

pytest.importorskip("matplotlib")

MACHINE = {"command": "hongtu bench <x> & y", "hongtu": "0", "python": "3", "torch": "2", "cores": 2, "processor": "P"}
GRAPH = {"graph": "g", "vertices": 100, "edges": 500, "partitions": 1, "chunks": 4, "model": "gcn", "hidden": 8,
         "layers": 2}  # fmt: skip
LINKS = ("load", "pull", "push", "flush", "read", "write", "topology", "fetch", "send", "disk")


def rows():
    """Two of everything that the pages of `hongtu report` and of `make bench` know."""
    ours = MACHINE | GRAPH | {
        "system": "hongtu", "strategy": "full", "budget": None, "share": None, "label": "hongtu full",
        "seconds": 0.5, "spread": [0.4, 0.6], "others": 0.0, "loss_agrees": True, "process_bytes": 2**20,
        "phases": dict.fromkeys((*LINKS, "compute", "idle"), 0.01), "bytes": dict.fromkeys(LINKS, 2**20),
        "counted_is_predicted": True, "predicted_seconds": 0.45,
    }  # fmt: skip
    curve = [{"epoch": e, "seconds": 0.5 * e, "train": 0.5, "val": 0.2 * e, "test": 0.1 * e} for e in (1, 2, 3)]
    theirs = ours | {"system": "pyg", "strategy": None, "label": "pyg <b>", "seconds": 2.0, "spread": [1.9, 2.1],
                     "curve": curve, "loss_agrees": False}  # fmt: skip
    del theirs["phases"], theirs["bytes"], theirs["counted_is_predicted"]
    return {
        "bench": [ours, theirs],
        "ladder": [ours | {"rung": name, "host_bytes": 2**20} for name in ("none", "paper")],
        "traffic": [ours | {"curve": [[0.5, 2.0], [1.0, 1.0]], "paper": [0.5, 3.0], "lookahead": 2.0, "floor": 0.9}],
        "budgets": [ours | {"share": share, "budget": 2**20, "seconds": 1 / share} for share in (1.0, 0.5)],
        "growth": [ours | {"vertices": v, "seconds": v / 1e5, "counted_bytes": v * 1000} for v in (10**5, 10**6)],
        "estimator": 6 * [ours | {"error": -0.1}, ours | {"error": 0.05, "seconds": 1.0, "predicted_seconds": 1.05}],
        "paper": [{"table": "Table 3", "what": "alpha", "graph": "g", "ours": "2", "published": "", "remark": "none"}],
    }


def test_systems_on_several_graphs_have_bars_of_their_own():
    ours, theirs = rows()["bench"]
    both = [ours, theirs, ours | {"graph": "h.artifact", "seconds": 5.0, "spread": [4.9, 5.1]}]
    for picture, bars in ((page.systems(both), 3), (page.phases(both), 2)):
        assert "g, gcn: hongtu full" in picture and "h, gcn: hongtu full" in picture
        assert len(re.findall(r'<g id="ytick_\d+">', picture)) == bars
    assert re.findall(r">([0-9.]+)</text>", page.systems(both))[-3:] == ["0.500", "2.000", "5.000"]
    assert len(page._tables(both, page.BENCH.about)) == 2
    assert page._tables([ours, theirs], page.BENCH.about)[0][0] == "g, gcn, 2 layers, hidden 8"
    alone = page.systems([ours, theirs])
    assert "gcn: hongtu full" in alone and "g, gcn" not in alone


def test_shares_of_memory_alone_are_a_section_of_their_own():
    ours, theirs = rows()["bench"]
    shares = [ours | {"model": "sage", "share": share} for share in (1.0, 0.5)]
    beside = ours | {"share": 0.5}  # of a model that was timed without a limit, too
    found = bench_page.with_budgets({"bench": [ours, theirs, beside, *shares]})
    assert found == {"bench": [ours, theirs, beside], "budgets": shares}
    assert bench_page.with_budgets({"bench": [ours]}) == {"bench": [ours]}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for name, found in rows().items():
        text = "".join(json.dumps(row | {"experiment": name}) + "\n" for row in found)
        (folder / f"{name}.jsonl").write_text(text)
    peaks = {"device 0": 2**20, "device 1": 7 * 2**20, "pinned host": 2**30}
    epochs = [{"epoch": e, "loss": 2.0 - e, "seconds": 0.1, "metrics": {"val": 0.5} if e > 1 else {}} for e in (1, 2)]
    epochs = [row | {"peak_bytes": peaks} for row in epochs]
    (folder / "options.json").write_text(json.dumps({"model": "gcn", "hidden": 64, "spill": None, "resume": False}))
    (folder / "epochs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in epochs))
    return folder


@pytest.mark.parametrize("text", ["[]", "7", "{", "[" * 100_000, "\ud800"])
def test_a_page_of_a_damaged_run_is_refused(text, results, tmp_path, capsys):
    shutil.copytree(results, tmp_path / "run")
    (tmp_path / "run" / "options.json").write_bytes(text.encode(errors="surrogatepass"))
    assert command(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 2
    assert "options.json: not " in capsys.readouterr().err and not (tmp_path / "page.html").exists()


class Seen(HTMLParser):
    """What a page holds, and every address in it."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.headings = {}, [], []
        self.inside = None

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.inside = tag
        names = ("src", "href", "xlink:href", "data", "srcset", "action")
        self.addresses += [value for name, value in attributes if name in names]

    def handle_data(self, data):
        if self.inside == "h2" and data.strip():
            self.headings.append(data.strip())


def check(text, sections):
    """Every section, table and figure is there, and nothing leads elsewhere."""
    seen = Seen()
    seen.feed(text)
    assert seen.headings == [section.heading for section in sections]
    assert seen.tags["table"] == len(sections)
    assert seen.tags["figure"] == seen.tags["figcaption"] == sum(len(section.figures) for section in sections)
    assert seen.tags["svg"] == seen.tags["figure"] and "script" not in seen.tags
    assert all(address.startswith("#") for address in seen.addresses), seen.addresses
    assert not re.search(r"url\((?!['\"]?#)|@import", text)
    return seen


def test_the_page_is_whole_and_keeps_to_itself(results, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert command(["report", str(results), "-o", str(out), "--title", "a < b"]) == 0
    text = out.read_text()
    check(text, page.SECTIONS)
    assert "<title>a &lt; b</title>" in text and "pyg &lt;b&gt;" in text and "<b>" not in text
    assert "Losses equal the reference&#39;s for 1 of 2 systems" in text and '<span class="bad">no</span>' in text
    for cell in ("0.400\u00a0to\u00a00.600", "1.50 (to 0.594)", "0.6000", "0.5000"):
        assert f"<td>{cell}</td>" in text, cell
    assert "<p>model gcn, hidden 64</p>" in text and "<td>7.0</td>" in text and "A run: 1 rows" in text
    assert "hongtu bench &lt;x&gt; &amp; y" in text and "2 cores of P, Python 3, torch 2, hongtu 0" in text
    assert "2 rows of bench" in capsys.readouterr().out


def test_the_page_of_make_bench_has_every_experiment(results, tmp_path, monkeypatch):
    out = tmp_path / "report.html"
    monkeypatch.setattr("sys.argv", ["page", str(results), "-o", str(out)])
    bench_page.main()
    text = out.read_text()
    check(text, bench_page.SECTIONS)
    assert "to the power of 1.00, memory to the power of 1.00" in text and "2.00x with gcn" in text
    assert "for 12 random configurations" in text and "largest error 10%" in text
    for cell in ("0.400\u00a0to\u00a00.600", "0.50, 3.00", "+5.0%", "50%", "95", "none"):
        assert f"<td>{cell}</td>" in text, cell


def chromium():
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    return found or pytest.skip("no Chromium here: apt-get install chromium")


def browse(file, tmp_path):
    """What a browser makes of a page, and the addresses that it asked for."""
    log = tmp_path / "net.json"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]  # fmt: skip
    shown = subprocess.run(
        [chromium(), *flags, f"--log-net-log={log}", "--virtual-time-budget=2000", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    asked = re.findall(r'"initiator":"([^"]*)".*?"url":"(\w+:[^"]*)"', log.read_text())
    own = "not an origin"  # the browser's: the page itself, its clock, its updates
    return shown, {url for initiator, url in asked if initiator != own and not url.startswith("file:")}


def test_a_browser_shows_it_and_asks_nobody(results, tmp_path):
    out, other = tmp_path / "report.html", tmp_path / "other.html"
    assert command(["report", str(results), "-o", str(out)]) == 0
    shown, asked = browse(out, tmp_path)
    check(shown, page.SECTIONS)
    assert not asked
    picture = "http://127.0.0.1:9/picture.png"
    other.write_text(f'<img src="{picture}">')
    assert browse(other, tmp_path)[1] == {picture}, "a request would not have been seen"


@pytest.mark.parametrize(
    "content, message",
    [(None, "not found"), ("{", "line 1: not JSON"), ("[]", "expected a JSON object"), ("{}", "no results")],
)
def test_bad_results_are_one_line(tmp_path, content, message, capsys):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content + "\n")
    assert command(["report", str(path), "-o", str(tmp_path / "x.html")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
