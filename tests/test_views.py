"""The drawings of the views: pure functions from a timeline to characters, on runs of the simulated cluster."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from recorded import timeline
from rich.cells import cell_len
from synth import MISTAKES, RIGHT, big_batches, cluster_of

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.state import Cursor
from ddpviz.dashboard.views import backward, chart, findings, job, layers, norms
from ddpviz.dashboard.views.canvas import Canvas, wrap
from ddpviz.dashboard.views.source import dedent, excerpt
from ddpviz.dashboard.views.tail import FIRST, Logs, Tail, clean, plain
from ddpviz.findings import find
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import Batch
from ddpviz.trace.records import PassFlag

SIZES = [(40, 8), (80, 22), (120, 36), (200, 40)]
BRAILLE = re.compile("[\u2801-\u28ff]")


def every_view(tl: Timeline, cursor: Cursor, found: list[Finding], width: int, height: int) -> list[Canvas]:
    return [
        norms.draw(tl, cursor, width, height),
        norms.draw(tl, cursor, width, height, -1),
        backward.draw(tl, cursor, width, height),
        *(layers.draw(tl, cursor, width, height, order) for order in range(len(layers.ORDERS))),
        findings.draw(tl, cursor, found, width, height),
        job.draw(tl, cursor, width, height),
    ]


@pytest.mark.parametrize("mistake", [None, *MISTAKES, *RIGHT])
def test_every_view_draws_every_kind_of_run_at_every_size(mistake: str | None) -> None:
    for ranks in (2, 9):
        tl = cluster_of(mistake, ranks=ranks).timeline()
        found = find(tl)
        passes = tl.modules[0].passes
        for index in (-1, 0, passes - 1, passes + 5):
            for width, height in [(20, 4), *SIZES]:
                for canvas in every_view(tl, Cursor(index=index, rank=1), found, width, height):
                    assert canvas.width == width
                    assert all(cell_len(line) <= width for line in canvas.text().splitlines())


def test_views_of_a_run_of_which_nothing_is_known_yet_say_so() -> None:
    tl = Timeline()
    words = [canvas.text() for canvas in every_view(tl, Cursor(), [], 80, 22)]
    assert all(re.search("No DDP module yet|none heard of yet", text) for text in words)


# --- numbers and names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "B", "0 B"),
        (312, "", "312"),
        (999.96, "B", "1.00 kB"),
        (1_234_567, "B", "1.23 MB"),
        (45_000, "", "45.0 k"),
        (0.0031, "s", "3.10 ms"),
        (0.25, "", "0.250"),
        (math.nan, "B", "NaN"),
        (-math.inf, "", "-Inf"),
    ],
)
def test_quantities_have_si_prefixes(value: float, unit: str, text: str) -> None:
    assert fmt.si(value, unit) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (850_000, "850 µs"),
        (999_900, "1.0 ms"),
        (3_140_000, "3.1 ms"),
        (31e9, "31 s"),
        (185e9, "3 min 05 s"),
    ],
)
def test_durations(ns: float, text: str) -> None:
    assert fmt.duration(ns) == text


@given(st.floats(allow_nan=True, allow_infinity=True, width=32))
def test_a_norm_takes_at_most_eight_cells(value: float) -> None:
    assert len(fmt.norm(value).lstrip("-")) <= 8


@given(st.text(max_size=60), st.integers(0, 40))
def test_shortened_names_fit_and_keep_their_ends(text: str, width: int) -> None:
    short = fmt.shorten(text, width)
    assert cell_len(short) <= width
    assert cell_len(fmt.fit(text, width)) == width
    if cell_len(text) <= width:
        assert short == text
    elif width > 3 and text.isascii():
        assert text.endswith(short.split("…", 1)[1])


@given(st.sets(st.integers(0, 40)))
def test_ranges_name_each_number_once(numbers: set[int]) -> None:
    named: list[int] = []
    for part in filter(None, fmt.ranges(numbers).split(", ")):
        first, _, last = part.partition("-")
        named.extend(range(int(first), int(last or first) + 1))
    assert named == sorted(numbers)


@given(st.floats(0, 1), st.integers(1, 60))
def test_bars_grow_with_their_share(share: float, width: int) -> None:
    bar = fmt.bar(share, width)
    assert len(bar) == width
    assert (bar.strip() == "") == (share == 0)
    assert abs(bar.count("█") - share * width) <= 1


@given(st.text(max_size=200), st.integers(1, 60))
def test_wrapped_lines_fit(text: str, width: int) -> None:
    rows = wrap(text, width)
    if text.isascii():
        assert all(len(row) <= max(width, 8) for row in rows)
    assert "".join("".join(rows).split()) == "".join(text.split())


def test_a_canvas_cuts_off_what_lies_outside_and_knows_wide_characters() -> None:
    canvas = Canvas(6, 1)
    canvas.put(-2, 0, "abcd")
    assert canvas.text() == "cd"
    canvas.put(3, 0, "層x\x1b\x9b")
    assert canvas.row(0) == "cd 層x"
    assert cell_len(canvas.row(0)) == 6
    canvas.put(5, 0, "層")
    assert cell_len(canvas.row(0)) <= 6


# --- charts ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=600), st.integers(4, 60))
def test_thinning_keeps_the_extremes_of_every_column(values: list[float], width: int) -> None:
    y = np.array(values)
    x = (np.arange(len(y)) + 0.5) * width / len(y)
    tx, ty, joined = chart.thin(x, y, np.ones(len(y), bool), width)
    assert len(tx) == len(ty) == len(joined) <= 2 * width
    for column in np.unique(x.astype(int)):
        mine, theirs = y[x.astype(int) == column], ty[tx.astype(int) == column]
        assert mine.min() == theirs.min()
        assert mine.max() == theirs.max()


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_cover_the_range_with_round_numbers(low: float, extent: float, count: int) -> None:
    high = low + extent
    if not high > low:
        return
    marks = chart.ticks(low, high, count)
    assert marks[0] <= low + 1e-6 * extent
    assert marks[-1] >= high - 1e-6 * extent
    assert len(marks) <= 2 * count + 2
    assert len(chart.tick_words(marks)) == len(marks)


def test_a_raster_puts_each_point_into_its_own_cell() -> None:
    canvas = Canvas(12, 5)
    x, y = np.array([0.5, 4.5, 9.5]), np.array([0.5, 2.5, 4.5])
    chart.raster(canvas, 1, 0, 10, 5, [chart.Line(x, y, np.zeros(3, bool), "local")])
    cells = [(col, row) for row in range(5) for col in range(12) if canvas.chars[row][col] != " "]
    assert cells == [(10, 0), (5, 2), (1, 4)]
    assert canvas.looks[0][10] == "local"


# --- norms -----------------------------------------------------------------------------------------------------------


def columns_of(text: str, glyphs: str) -> list[int]:
    line = next(line for line in text.splitlines() if line and set(line.strip()) <= set(glyphs + " "))
    return [at for at, char in enumerate(line) if char != " "]


def test_norms_show_what_happened_under_every_micro_step() -> None:
    tl = cluster_of(None, accumulation=4).timeline()
    canvas = norms.draw(tl, Cursor(index=3), 120, 30)
    view = norms.layout(tl.modules[0], Cursor(index=3), 120, 0)[1]
    rows = canvas.text().splitlines()
    marks = next(row for row in rows if set(row.strip()) <= {" ", "░", "█"} and "█" in row)
    steps = next(row for row in rows if set(row.strip()) == {" ", "▲"} or row.strip() == "▲")
    for index in range(tl.modules[0].passes):
        at = norms.GUTTER + int(view.column(index))
        assert marks[at] == ("█" if index % 4 == 3 else "░")
        assert (steps.ljust(120)[at] == "▲") == (index % 4 == 3)


def test_norms_name_the_numbers_of_the_pass_at_the_cursor() -> None:
    tl = cluster_of(None).timeline()
    module = tl.modules[0]
    legend = norms.draw(tl, Cursor(index=3), 120, 30).text().splitlines()[-1]
    for rank in (0, 1):
        assert f"rank {rank} {fmt.norm(float(module.lanes[rank].passes[3]['local_norm']))}" in legend
    assert f"mean {fmt.norm(float(module.lanes[0].passes[3]['norm']))}" in legend


def unsampled(tl: Timeline, index: int) -> None:
    """Take the measurements of one pass away."""
    for lane in tl.modules[0].lanes.values():
        flags = PassFlag.SAMPLED | PassFlag.HAS_LOCAL_NORM | PassFlag.HAS_NORM
        lane.passes["flags"][index] &= 0xFFFF ^ int(flags)
        lane.layers = lane.layers[lane.layers["pass"] != index]


def test_passes_that_were_not_sampled_are_gaps() -> None:
    tl = cluster_of(None, accumulation=4).timeline()
    unsampled(tl, 5)
    canvas = norms.draw(tl, Cursor(index=0), 120, 30)
    view = norms.layout(tl.modules[0], Cursor(index=0), 120, 0)[1]
    gap = norms.GUTTER + int(view.column(5))
    assert M.UNSAMPLED.glyph in [row[gap] for row in canvas.chars]
    assert not [look for row in canvas.looks for look in row[gap : gap + 1] if look.startswith("rank:")]
    drawn = "".join(row[norms.GUTTER + int(view.column(6))] for row in canvas.chars)
    assert BRAILLE.search(drawn) or set(drawn) & set(norms.SHAPES)


def test_nan_is_marked_and_leaves_the_scale_alone() -> None:
    tl = cluster_of("nan").timeline()
    text = norms.draw(tl, Cursor(), 100, 24).text()
    assert M.NONFINITE.glyph in text
    assert "nan" not in text.lower().replace("gradient", "")


@settings(max_examples=15, deadline=None)
@given(wrong=st.integers(0, 4999), width=st.integers(40, 200), height=st.integers(8, 40), ranks=st.sampled_from([2, 8]))
def test_one_wrong_step_of_thousands_stays_in_sight(wrong: int, width: int, height: int, ranks: int) -> None:
    tl = big(ranks, wrong)
    assert M.WRONG_STEP.glyph in norms.draw(tl, Cursor(index=0), width, height, -1).text()


def big(ranks: int, wrong: int) -> Timeline:
    fold = Fold()
    fold.feed([Batch(source, blocks) for _, source, blocks in big_batches(ranks, 20_000, wrong=[wrong], buckets=False)])
    return fold.timeline


@given(st.integers(1, 10_000), st.integers(-1, 10_000), st.integers(1, 300), st.integers(0, 10_000))
def test_the_window_of_norms_holds_its_cursor(passes: int, index: int, width: int, count: int) -> None:
    index = min(index, passes - 1)
    view = norms.span(passes, index, width, count)
    assert 0 <= view.lo < view.hi <= passes
    assert view.lo <= (index if index >= 0 else passes - 1) < view.hi
    at = view.column(np.arange(view.lo, view.hi))
    assert (at >= 0).all()
    assert (at < width).all()
    assert (np.diff(at) >= 0).all()
    assert view.lo <= view.at(int(at[-1])) < view.hi


# --- backward --------------------------------------------------------------------------------------------------------


def test_the_straggler_is_named() -> None:
    tl = cluster_of("straggler", ranks=3).timeline()
    found = backward.late(tl.modules[0], tl.modules[0].passes - 1)
    assert found is not None
    rank, count, of, gap = found
    assert (rank, count) == (2, of)
    assert gap > 0
    text = backward.draw(tl, Cursor(index=tl.modules[0].passes - 1), 100, 30).text()
    assert f"rank 2 arrived last in {of} of" in text


def test_bars_stand_where_their_times_are() -> None:
    tl = cluster_of(None).timeline()
    lane = tl.modules[0].lanes[0]
    scale = backward._scale([lane], 3, 20, 80)
    canvas = backward.draw(tl, Cursor(index=3), 140, 30)
    buckets = lane.buckets_of(3)
    rows = [row for row in canvas.text().splitlines() if re.match(r" +bucket \d", row)][: len(buckets)]
    assert len(rows) == len(buckets) > 1
    found = sorted((int(bucket["ready"]), row.index("◆")) for bucket, row in zip(buckets, rows, strict=True))
    assert [at for _, at in found] == sorted(at for _, at in found)
    assert scale.at(int(buckets["ready"][0])) < scale.at(int(buckets["done"][0]))


def test_a_local_pass_says_so() -> None:
    tl = cluster_of(None).timeline()
    text = backward.draw(tl, Cursor(index=0), 80, 22).text()
    assert "local (no_sync)" in text
    assert "A local pass: no all-reduce" in text
    assert "exposed" not in text


def test_a_waiting_rank_stands_with_what_it_waits_in() -> None:
    tl = cluster_of("hang").timeline()
    text = backward.draw(tl, Cursor(index=tl.modules[0].passes - 1), 100, 30).text()
    assert re.search(rf"rank 1 +{M.WAITING.glyph} in barrier for 12 s", text)
    assert "dist.barrier()" in text


# --- layers ----------------------------------------------------------------------------------------------------------


def test_layers_show_what_was_measured() -> None:
    tl = cluster_of(None).timeline()
    module = tl.modules[0]
    text = layers.draw(tl, Cursor(index=3), 120, 30).text()
    for number, param in enumerate(module.params):
        row = next(row for row in text.splitlines() if row.split()[:1] == [param.name])
        for rank in (0, 1):
            (found,) = module.lanes[rank].layers_of(3)[[number]]
            assert fmt.norm(float(found["local_norm"])) in row.split()
            assert fmt.norm(float(found["norm"])) in row.split()


def test_layers_filter_and_order() -> None:
    tl = cluster_of(None).timeline()
    names = [param.name for param in tl.modules[0].params]
    shown = layers.draw(tl, Cursor(index=3, filter="bias"), 120, 30).text()
    assert [name for name in names if name in shown] == [name for name in names if "bias" in name]
    assert "No layer's name holds 'conv'" in layers.draw(tl, Cursor(index=3, filter="conv"), 120, 30).text()
    largest = layers.draw(tl, Cursor(index=3), 120, 30, 1).text().splitlines()[2:]
    data = layers.table(tl.modules[0], 3)
    order = [names[i] for i in np.argsort(-data.local.max(axis=1), kind="stable")]
    assert [row.split()[0] for row in largest] == order


def test_layers_of_a_pass_that_was_not_sampled_point_to_the_nearest_that_was() -> None:
    tl = cluster_of(None).timeline()
    for index in (5, 6):
        unsampled(tl, index)
    assert layers.nearest(tl.modules[0], 5) == 4
    assert layers.nearest(tl.modules[0], 6) == 7
    text = layers.draw(tl, Cursor(index=6), 80, 22).text()
    assert "not sampled" in text
    assert "sampled is 7: press n" in text


def test_layers_mark_the_rank_whose_gradient_is_no_number() -> None:
    tl = cluster_of("nan").timeline()
    where = next(f for f in find(tl) if f.rule == "nonfinite-gradient")
    text = layers.draw(tl, Cursor(index=where.backward or 0), 120, 22).text()
    assert f"{M.NONFINITE.glyph} NaN" in text


# --- findings --------------------------------------------------------------------------------------------------------


def finding(file: str = "", line: int = 0, code: str = "", **more: object) -> Finding:
    base = {"rule": "unsynced-step", "severity": Severity.ERROR, "message": "It went wrong.", "advice": "Do it right."}
    return Finding(**{**base, "file": file, "line": line, "code": code, **more})  # type: ignore[arg-type]


def test_findings_stand_worst_first_and_the_chosen_one_is_open() -> None:
    rows = [
        finding(rule="straggler", severity=Severity.INFO, message="late"),
        finding(rule="redundant-sync", severity=Severity.WARNING, message="too often"),
        finding(),
    ]
    tl = cluster_of(None).timeline()
    text = findings.draw(tl, Cursor(), rows, 80, 22).text()
    assert "1 error, 1 warning, 1 note" in text
    assert text.index("unsynced-step") < text.index("redundant-sync") < text.index("straggler")
    assert "It went wrong." in text
    assert "→ Do it right." in text
    assert "too often" not in text
    opened = findings.draw(tl, Cursor(), rows, 80, 22, findings.name_of(rows[1])).text()
    assert "too often" in opened
    assert "It went wrong." not in opened


def test_the_source_line_stands_in_its_context(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for x in data:\n    loss = f(x)\n    loss.backward()\n    optimizer.step()\n    clear()\n")
    rows = [finding(str(script), 4, "optimizer.step()")]
    tl = Timeline()
    text = findings.draw(tl, Cursor(), rows, 100, 22).text()
    assert re.search(r"▶ 4 +optimizer\.step\(\)", text)
    assert re.search(r"  3 +loss\.backward\(\)", text)
    assert "has changed" not in text
    script.write_text("\n" + script.read_text())
    changed = findings.draw(tl, Cursor(), rows, 100, 22).text()
    assert "The file has changed since the run: line 4 reads otherwise now." in changed
    assert re.search(r"▶ 4 +optimizer\.step\(\)", changed)
    script.unlink()
    assert "The file is not on this machine" in findings.draw(tl, Cursor(), rows, 100, 22).text()


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert "not known" in excerpt("", 0).problem
    assert "cannot be read here" in excerpt(str(tmp_path), 1).problem
    short = tmp_path / "short.py"
    short.write_text("x = 1\n")
    assert "no line 9 any more" in excerpt(str(short), 9).problem
    assert dedent(("    a", "", "      b")) == ("a", "", "  b")


@pytest.mark.parametrize("mistake", ["unsynced", "stale", "redundant", "nan"])
def test_every_finding_leads_to_its_cell(mistake: str) -> None:
    tl = cluster_of(mistake).timeline()
    found = find(tl)
    assert found
    for one in found:
        cell = findings.cell_of(tl, one)
        assert cell is not None
        position, index = cell
        assert position == 0
        assert 0 <= index < tl.modules[0].passes
        if one.backward is not None:
            assert index == one.backward


def test_a_failed_job_without_findings_is_not_called_right() -> None:
    tl = cluster_of(None).timeline()
    assert "Nothing wrong in 16 backward passes and 4 steps." in findings.draw(tl, Cursor(), [], 80, 10).text()
    tl.run.status, tl.run.exit_code = "failed", 1
    text = findings.draw(tl, Cursor(), [], 100, 10).text()
    assert "Nothing wrong" not in text
    assert "the job itself failed (exit code 1)" in text


# --- job -------------------------------------------------------------------------------------------------------------


def test_the_job_view_names_ranks_backend_buckets_and_arguments() -> None:
    tl = cluster_of("died", ranks=3).timeline()
    for width in (80, 180):
        text = job.draw(tl, Cursor(), width, 40).text()
        assert f"{tl.run.backend} x3 ({tl.run.backend_reason})" in text
        assert f"{M.DEAD.glyph} died" in text
        assert "ended by signal 9" in text
        assert "find_unused_parameters=False" in text
        for number, size in enumerate(tl.modules[0].layouts[-1].bytes):
            assert re.search(rf"{number} +{re.escape(fmt.size(size))}", text)


def test_the_worst_ranks_come_first() -> None:
    tl = cluster_of("died", ranks=9).timeline()
    rows = [
        row.split() for row in job.draw(tl, Cursor(), 100, 40).text().splitlines() if re.match(r" +\d+ [^ ] \w", row)
    ]
    assert len(rows) == 9
    assert rows[0][2] == "died"


# --- output ----------------------------------------------------------------------------------------------------------


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n"), max_size=80))
def test_cleaned_lines_cannot_move_a_cursor(text: str) -> None:
    line = clean(text)
    left = re.sub(r"\x1b\[[\d;:]*m", "", line)
    assert plain(line) == left
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", left)


def test_colours_stay_and_all_else_goes() -> None:
    assert clean("a\x1b[31mred\x1b[0m\x1b[2J\x1b]0;title\x07\x1b[10;3Hb\x07") == "a\x1b[31mred\x1b[0mb"
    assert clean(" 10%|#   |\r 90%|### |") == " 90%|### |"
    assert clean("done\r") == "done"


def test_a_tail_gives_each_line_once(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    tail = Tail(log)
    assert tail.read() == []
    log.write_text("one\ntw")
    assert tail.read() == ["one"]
    assert tail.partial == "tw"
    with log.open("a") as more:
        more.write("o\nthree\n")
    assert tail.read() == ["two", "three"]
    assert tail.partial == ""
    log.write_text("new\n")
    assert tail.read() == ["new"]


def test_of_a_huge_log_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"line {i}\n" for i in range(200_000)))
    tail = Tail(log)
    lines = tail.read()
    assert lines[-1] == "line 199999"
    assert len(lines) * 11 < FIRST + 100
    assert tail.skipped > 0
    assert all(re.fullmatch(r"line \d+", line) for line in lines)


def test_logs_come_from_run_json_and_never_from_outside(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("hello\n")
    named = {"10": "logs/rank-10.log", "launcher": "logs/l.log", "0": "logs/rank-0.log", "1": "/etc/passwd"}
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished", "logs": named}))
    logs = Logs(tmp_path)
    news = logs.look()
    assert news.names == ("0", "10", "launcher")
    assert news.lines["0"] == ["hello"]
    assert not news.over
    assert logs.look().over
    (tmp_path / "run.json").write_text("{torn")
    assert Logs(tmp_path).look().names == ()


def test_the_marks_differ_in_their_shape() -> None:
    glyphs = [mark.glyph for mark in M]
    assert len(set(glyphs)) == len(glyphs)
    assert all(cell_len(glyph) == 1 for glyph in glyphs)


def test_the_buckets_stand_in_numbers_below_the_waterfall() -> None:
    tl = timeline("uneven")
    module = tl.modules[0]
    text = backward.draw(tl, Cursor(index=0), 140, 40).text()
    table = text[text.index("bucket     size") :].splitlines()[1:]
    for number, row in enumerate(table):
        size = module.layouts[int(module.lanes[0].buckets_of(0)["layout"][0])].bytes[number]
        assert row.split()[0] == str(number)
        assert fmt.size(size) in row
        rows = [bucket for lane in module.lanes.values() for bucket in lane.buckets_of(0)[[number]]]
        assert f"{fmt.size(size / min(int(b['done']) - int(b['launch']) for b in rows) * 1e9)}/s" in row


def test_a_pass_says_which_micro_step_it_met_where_ranks_are_out_of_step() -> None:
    tl = timeline("uneven")
    words = {i: backward.draw(tl, Cursor(index=i), 140, 40).text() for i in range(4)}
    assert "the all-reduce of rank 1 met micro-step 2 of rank 0." in words[3]
    assert "the all-reduce of rank 0 met micro-step 3 of rank 1." in words[2]
    assert "Out of step" not in words[0] + words[1]


def test_a_chart_without_a_number_says_why() -> None:
    tl = cluster_of(None, accumulation=4).timeline()
    for index in range(tl.modules[0].passes):
        unsampled(tl, index)
    assert "no norm was taken in these micro-steps" in norms.draw(tl, Cursor(), 80, 22).text()
    for lane in tl.modules[0].lanes.values():
        lane.passes["flags"] |= int(PassFlag.SAMPLED | PassFlag.HAS_LOCAL_NORM)
        lane.passes["local_norm"] = math.nan
    text = norms.draw(tl, Cursor(), 80, 22).text()
    assert "no norm is a number here" in text
    assert M.NONFINITE.glyph in text
