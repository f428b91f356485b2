"""Exports: tables that open, a Perfetto trace whose slices and arrows hold, pages that ask nobody and escape."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import synth

from ddpviz.export import chart, page, perfetto, svg, tidy
from ddpviz.export.compare import compare, figures
from ddpviz.export.load import load
from ddpviz.export.source import source
from ddpviz.findings.model import Finding, Severity
from ddpviz.headless.export import export_run
from ddpviz.timeline.model import Timeline

EVIL = "\x1b[2J\x1b]0;owned\x07<script>alert('x')</script> & \"quoted\""
KINDS = [None, *synth.MISTAKES, *synth.RIGHT]


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    return load(synth.write_run(tmp_path_factory.mktemp("run"), "stale", ranks=3, modules=2))


# --- csv -------------------------------------------------------------------------------------------------------------


def table(tl: Timeline, name: str) -> list[dict[str, str]]:
    stream = io.StringIO()
    tidy.write(stream, *tidy.tables(tl)[name])
    return list(csv.DictReader(io.StringIO(stream.getvalue())))


def test_one_row_a_rank_and_pass(stale: Timeline) -> None:
    rows = table(stale, "passes")
    assert len(rows) == 2 * 3 * 16
    assert Counter(row["sync_across_ranks"] for row in rows) == {"local": 72, "synced": 24}
    row = next(r for r in rows if r["rank"] == "1" and r["backward"] == "3" and r["module"] == "0")
    assert (row["window"], row["sync"], row["no_sync_forward"], row["sampled"]) == ("0", "synced", "0", "1")
    assert float(row["norm"]) < float(row["local_norm"])
    assert row["file"].endswith("train.py")
    assert all(None not in row.values() and None not in row for row in rows)  # every row as wide as the header


def test_one_row_a_bucket_and_one_a_step_and_rank(stale: Timeline) -> None:
    buckets = table(stale, "buckets")
    layouts = [len(module.layouts[0].buckets) for module in stale.modules]
    sent = [row for row in buckets if row["sent"] == "1"]
    assert len(sent) == sum(3 * 4 * count for count in layouts)
    assert all(int(row["ready_ns"]) <= int(row["launch_ns"]) <= int(row["done_ns"]) for row in sent)
    steps = table(stale, "steps")
    assert len(steps) == 3 * len(stale.steps)
    assert {row["gradients"] for row in steps} == {"synced", "stale"}


def test_nan_is_nan_and_unmeasured_is_empty(tmp_path: Path) -> None:
    tl = load(synth.write_run(tmp_path, "nan", ranks=2))
    assert "nan" in {row["local_norm"] for row in table(tl, "passes")}
    tl.modules[0].lanes[0].passes["flags"] = 0
    assert {row["loss"] for row in table(tl, "passes") if row["rank"] == "0"} == {""}


# --- perfetto --------------------------------------------------------------------------------------------------------


def events(tl: Timeline) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(perfetto.to_perfetto(tl))["traceEvents"]
    return found


@pytest.mark.parametrize("mistake", KINDS, ids=str)
def test_slices_of_a_track_nest(tmp_path: Path, mistake: str | None) -> None:
    """The format's rule: complete events of one thread are inside one another or apart."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events(load(synth.write_run(tmp_path, mistake, ranks=3, modules=2))):
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda s: (s[0], -s[1])):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def test_tracks_slices_instants_and_counters(stale: Timeline) -> None:
    found = events(stale)
    kinds = Counter(event["ph"] for event in found)
    assert Counter(e["cat"] for e in found if e["ph"] == "X")["backward"] == 2 * 3 * 16
    forwards = [e for e in found if e["ph"] == "X" and e["cat"] == "forward"]
    assert len(forwards) == 2 * 3 * 16
    assert all(e["dur"] > 0 for e in forwards)
    assert kinds["i"] == 3 * len(stale.steps)
    assert kinds["C"] == 2 * 3 * 16
    names = {e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert {name.split(" on ")[0] for name in names} == {"rank 0", "rank 1", "rank 2"}
    threads = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in found if e["ph"] in "Xi"} <= threads  # every track has a name


def test_arrows_run_from_the_last_to_arrive_into_slices(stale: Timeline) -> None:
    found = events(stale)
    slices = [e for e in found if e["ph"] == "X" and e["cat"] == "all-reduce"]
    ends: dict[str, dict[str, dict[str, Any]]] = {}
    for event in found:
        if event["ph"] in "sf":
            ends.setdefault(event["id"], {})[event["ph"]] = event
            inside = [
                s
                for s in slices
                if (s["pid"], s["tid"]) == (event["pid"], event["tid"]) and s["ts"] <= event["ts"] < s["ts"] + s["dur"]
            ]
            assert len(inside) == 1
    assert len(ends) == len(slices) * 2 // 3  # two of three ranks waited for the third, each time
    for pair in ends.values():
        assert pair["s"]["ts"] <= pair["f"]["ts"]
        assert pair["s"]["pid"] != pair["f"]["pid"]


def test_perfettos_own_trace_processor_reads_it(stale: Timeline, tmp_path: Path) -> None:
    processor = shutil.which("trace_processor_shell") or shutil.which("trace_processor")
    if processor is None:
        pytest.skip("trace_processor is not installed")
    file, query = tmp_path / "trace.json", tmp_path / "query.sql"
    file.write_bytes(perfetto.to_perfetto(stale))
    query.write_text("select count(*) as n from slice where category = 'backward';")
    out = subprocess.run([processor, "-q", str(query), str(file)], capture_output=True, text=True, timeout=60)
    assert str(2 * 3 * 16) in out.stdout


# --- svg and html ----------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


def finding(**fields: Any) -> Finding:
    made = {"rule": "unsynced-step", "severity": Severity.ERROR, "message": "what happened", "advice": "what to do"}
    return Finding(**{**made, **fields})


@pytest.mark.parametrize("mistake", KINDS, ids=str)
def test_every_kind_of_run_has_a_page_and_a_drawing(tmp_path: Path, mistake: str | None) -> None:
    tl = load(synth.write_run(tmp_path, mistake, ranks=3, modules=2))
    ElementTree.fromstring(svg.to_svg(tl))
    read = Page(page.to_html(tl, [finding()]))
    assert read.tags["script"] == 0
    assert "what happened" in read.text
    assert tl.run.status in read.text


def test_nothing_in_a_page_asks_anybody(stale: Timeline) -> None:
    text = page.to_html(stale, [finding()])
    for name, value in Page(text).attributes:
        assert name not in ("src", "href", "srcset", "action", "xlink:href"), (name, value)
        assert "://" not in value or value == "http://www.w3.org/2000/svg", (name, value)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_text_from_a_job_is_never_markup(stale: Timeline) -> None:
    tl = stale
    tl.run.title, tl.run.notes, name = EVIL, [EVIL], tl.modules[0].name
    tl.modules[0].name = EVIL
    try:
        text = page.to_html(tl, [finding(message=EVIL, advice=EVIL, file=EVIL, line=3, code=EVIL, via=EVIL)])
        drawing = svg.to_svg(tl)
    finally:
        tl.run.title, tl.run.notes, tl.modules[0].name = "stale", [], name
    read = Page(text)
    assert read.tags["script"] == 0
    assert "alert('x')" in read.text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\x1b" not in drawing
    assert ElementTree.fromstring(drawing).find(".//{http://www.w3.org/2000/svg}script") is None


def test_one_wrong_step_of_many_stays_visible(tmp_path: Path) -> None:
    tl = load(synth.write_big(tmp_path, 2, 40_000, wrong=[4321]))
    drawing = svg.to_svg(tl)
    legend = 1
    assert drawing.count('class="cross"') == 2 + legend
    assert len(drawing) < 400_000


def test_many_ranks_share_rows_and_the_odd_one_has_its_own(tmp_path: Path) -> None:
    tl = load(synth.write_run(tmp_path, "mixed", ranks=40))
    assert svg.grouped(tl.modules[0]) == [list(range(39)), [39]]
    assert "ranks 0-38 (39)" in svg.to_svg(tl)


def test_a_thinned_line_keeps_its_peaks_and_its_nan() -> None:
    value = np.ones(100_000)
    value[777], value[50_000], value[99_000] = 9.0, np.nan, -3.0
    kept = set(chart.thin(np.arange(len(value)), value).tolist())
    assert {777, 50_000, 99_000} <= kept
    assert len(kept) <= chart.POINTS + 2


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium here")
def test_a_browser_draws_it_light_and_dark(stale: Timeline, tmp_path: Path) -> None:
    """The page's own style decides: body colours of both schemes, and the drawing is there with its size."""
    probe = (
        "<script>addEventListener('load',()=>{const s=getComputedStyle(document.body);"
        "const r=document.querySelector('svg.ddpviz').getBoundingClientRect();"
        "document.title=[s.backgroundColor,Math.round(r.width),Math.round(r.height)].join(' ')})</script>"
    )
    text = page.to_html(stale, [finding()])
    text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", probe, text)  # only so that it can be asked
    file = tmp_path / "page.html"
    file.write_text(text)
    seen = {}
    for name, scheme in (("light", "1"), ("dark", "0")):
        command = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / name}"),
            *(f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=2000", "--dump-dom"),
            file.as_uri(),
        ]
        out = subprocess.run(command, capture_output=True, text=True, timeout=100).stdout
        title = re.search(r"<title>(rgb[^<]*)</title>", out)
        assert title, out[:500]
        seen[name] = title[1]
    assert seen["light"].startswith("rgb(255, 255, 255)")
    assert seen["dark"].startswith("rgb(20, 24, 28)")
    assert all(int(size) > 100 for size in seen["light"].split()[-2:])


# --- source lines ----------------------------------------------------------------------------------------------------


def test_source_lines_are_shown_only_where_the_file_is_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("a = 1\n\tb = 2\noptimizer.step()\nd = 4\n")
    lines = source(str(file), 3, "optimizer.step()")
    assert [(line.number, line.text, line.here) for line in lines] == [
        (1, "a = 1", False),
        (2, "    b = 2", False),
        (3, "optimizer.step()", True),
        (4, "d = 4", False),
    ]
    assert [line.text for line in source(str(file), 3, "scaler.step()")] == ["scaler.step()"]
    assert source(str(file), 3, "") == []  # a trace from a stranger may name any file
    assert source("/dev/zero", 1, "x")[0].text == "x"


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["json", "perfetto", "csv", "html", "svg"])
def test_export_writes_a_file_and_the_same_to_stdout(tmp_path: Path, to: str) -> None:
    run, file = synth.write_run(tmp_path, "stale"), tmp_path / "out"
    assert export_run(run, to=to, output=str(file)) == 0
    command = [sys.executable, "-m", "ddpviz", "export", str(run), "--to", to]
    out = subprocess.run(command, capture_output=True, timeout=60)
    assert (out.returncode, out.stderr) == (0, b"")
    assert out.stdout == file.read_bytes()
    assert len(out.stdout) > 500


def test_csv_into_a_folder_gives_all_tables(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, "stale")
    assert export_run(run, to="csv", output=f"{tmp_path}/tables/") == 0
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == ["buckets.csv", "passes.csv", "steps.csv"]


def test_what_cannot_be_written_or_read_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = synth.write_run(tmp_path, "stale")
    cases = [(run, str(tmp_path), 2), (run, str(tmp_path / "no" / "where"), 2), (tmp_path / "none", None, 5)]
    if Path("/dev/full").exists():
        cases.append((run, "/dev/full", 2))
    for folder, output, code in cases:
        assert export_run(folder, to="json", output=output) == code
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("ddpviz: ")


def test_a_closed_pipe_and_a_full_disk_are_one_line(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, "stale")
    command = [sys.executable, "-m", "ddpviz", "export", str(run), "--to", "json"]
    reader, writer = os.pipe()
    os.close(reader)
    sinks = [(writer, 0, "broken pipe")]
    if Path("/dev/full").exists():
        sinks.append((os.open("/dev/full", os.O_WRONLY), 2, "no space left"))
    for sink, code, words in sinks:
        out = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(sink)
        assert out.returncode == code
        assert len(out.stderr.splitlines()) == 1
        assert words in out.stderr


# --- compare ---------------------------------------------------------------------------------------------------------


def test_compare_says_each_difference_in_a_sentence(tmp_path: Path) -> None:
    a = load(synth.write_run(tmp_path, "redundant", ranks=2))
    b = load(synth.write_run(tmp_path, None, ranks=2))
    found = [finding(rule="redundant-sync", severity=Severity.WARNING)]
    text = "\n".join(compare(figures(a, found, "before"), figures(b, [], "after")))
    assert "redundant-sync (warning) is found in A and gone in B." in text
    assert "A all-reduced 16 of 16 micro-steps (100 %), B 4 of 16 (25 %)." in text
    assert re.search(r"A rank sends a step 31\.9 kB in A and 7\.98 kB in B, 75 % less\.", text)
    same = "\n".join(compare(figures(b, [], "x"), figures(b, [], "y")))
    assert "No difference." in same
    assert "replicas equal" in same
