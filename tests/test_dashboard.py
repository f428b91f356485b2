"""The dashboard's pure parts: cells, levels, time, narration, the tables of keys and marks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import synth
from hypothesis import given, settings, strategies as st
from rich.style import Style

from ddpviz.dashboard import cells as c, playback as play, sync_draw
from ddpviz.dashboard.brief import _all_right
from ddpviz.dashboard.draw import strip
from ddpviz.dashboard.keys import KEYS, VIEWS
from ddpviz.dashboard.levels import Phase, levels
from ddpviz.dashboard.levels_view import draw as draw_levels
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.moments import gather
from ddpviz.dashboard.narration import before_the_module, narrate
from ddpviz.dashboard.overview import plan
from ddpviz.dashboard.situation import State, hang_lines, situation
from ddpviz.dashboard.state import SPEEDS, Cursor
from ddpviz.dashboard.themes import ROLES, THEMES
from ddpviz.findings import find
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Sync, Timeline
from ddpviz.trace import records as r
from ddpviz.trace.reader import Batch

INK = {role: Style() for role in ROLES}


def run(mistake: str | None = None, **how: object) -> Timeline:
    return synth.cluster_of(mistake, **how).timeline()


def rows(tl: Timeline, *, first: int = 0, columns: int = 16, pitch: int = 1, factor: int = 1) -> list[str]:
    """Each rank's row of the timeline as text."""
    module = tl.modules[0]
    groups, _ = c.group(tl, module, meant=False, most=99)
    grid = c.grid(tl, module, groups, first=first, factor=factor, columns=columns, meant=False)
    frame = sync_draw.Frame(pitch, -1, INK)
    return ["".join(text for text, _ in sync_draw.row(grid, its, frame, marks=True)) for its in grid.rows]


# --- the Sync timeline -----------------------------------------------------------------------------------------------


def test_local_and_averaged_passes_have_their_marks() -> None:
    assert rows(run()) == ["░░░█" * 4] * 2


def test_a_step_stands_behind_its_pass() -> None:
    assert rows(run(), columns=4, pitch=6)[0].replace(" ", "") == "░░░░░░░░░███▲│"


def test_a_wrong_step_is_a_cross_even_where_there_is_one_cell_a_pass() -> None:
    assert rows(run("unsynced")) == ["░░░█░░░✗░░░✗░░░✗"] * 2


def test_ranks_that_disagree_are_drawn_each_as_it_was() -> None:
    first, last = rows(run("mixed"), columns=8)
    assert first != last
    grid = c.grid(run("mixed"), run("mixed").modules[0], [(0,), (1,)], first=0, factor=1, columns=8, meant=False)
    assert grid.mixed.any()


def test_a_rank_that_died_is_told_from_one_that_waits() -> None:
    there, gone = rows(run("died"), columns=9)
    assert M.WAITING.glyph in there
    assert M.DEAD.glyph in gone
    assert M.DEAD.glyph not in there


def test_local_steps_of_one_rank_alone_are_no_mistake() -> None:
    tl = run("unsynced", ranks=1)
    assert c.meant_local(tl.modules[0], [])
    assert not c.meant_local(run("unsynced").modules[0], [])


@settings(max_examples=25, deadline=None)
@given(
    wrong=st.integers(0, 249),
    columns=st.integers(1, 300),
    zoom=st.integers(0, 12),
)
def test_one_wrong_step_is_seen_at_every_zoom_and_width(wrong: int, columns: int, zoom: int) -> None:
    tl = _long(wrong)
    module = tl.modules[0]
    factor = 2**zoom
    total = c.length(tl, module)
    shown = c.whole(tl, module, [(0,), (1,)], total=total, columns=min(columns, total), meant=False)
    assert (shown.ticks == c.Tick.WRONG).sum() == 1
    at = wrong * 4 + 3
    first = at // factor * factor
    grid = c.grid(tl, module, [(0,), (1,)], first=first, factor=factor, columns=columns, meant=False)
    assert all(row.ticks[0] == c.Tick.WRONG for row in grid.rows)


_LONG: dict[int, Timeline] = {}


def _long(wrong: int) -> Timeline:
    if wrong not in _LONG:
        fold = Fold()
        for _, source, blocks in synth.big_batches(2, 1000, wrong=[wrong]):
            fold.feed([Batch(source, blocks)])
        _LONG[wrong] = fold.timeline
    return _LONG[wrong]


def test_ranks_beyond_the_rows_group_by_what_they_did_and_the_odd_one_stands_alone() -> None:
    tl = run("died", ranks=12)
    groups, hidden = c.group(tl, tl.modules[0], meant=False, most=4)
    assert hidden == 0
    assert sorted(map(len, groups)) == [1, 11]
    odd = min(groups, key=len)
    assert tl.ranks[odd[0]].status == "died"
    assert sync_draw.label(max(groups, key=len)) == "ranks 0-10 (11)"


def test_the_ruler_numbers_fit_between_each_other() -> None:
    for (pitch, factor), highest in itertools.product(((6, 1), (4, 1), (1, 1), (1, 8), (1, 64)), (9, 1234, 123456)):
        every = sync_draw.label_every(pitch, factor, highest)
        assert every * pitch > len(str(highest))


def test_marks_differ_without_colour() -> None:
    drawn = [*sync_draw.MARK_OF_CELL.values(), *sync_draw.MARK_OF_TICK.values(), M.MIXED, M.NONFINITE]
    for one, other in itertools.combinations(drawn, 2):
        assert one.glyph != other.glyph


def test_the_legend_keeps_every_mark_in_sight_at_every_width() -> None:
    tl = run("died")
    grid = c.grid(tl, tl.modules[0], [(0,), (1,)], first=0, factor=1, columns=12, meant=False)
    for width in (60, 80, 120, 200):
        text = "".join(t for t, _ in sync_draw.legend(grid, width, INK))
        for mark in (M.LOCAL, M.SYNCED, M.DEAD, M.WAITING):
            assert mark.glyph in text


# --- levels ----------------------------------------------------------------------------------------------------------


def test_levels_rise_with_local_passes_meet_at_the_mean_and_are_emptied() -> None:
    tl = run()
    module = tl.modules[0]
    seen = [levels(tl, module, play.rest(module, k)) for k in range(4)]
    for before, after in itertools.pairwise(seen[:3]):
        assert all((a.value or 0) > (b.value or 0) for b, a in zip(before.levels, after.levels, strict=True))
    assert len({f"{level.value:.9g}" for level in seen[2].levels}) == 2
    assert {level.phase for level in seen[3].levels} == {Phase.SYNCED}
    assert len({f"{level.value:.6g}" for level in seen[3].levels}) == 1
    assert seen[3].mean == pytest.approx(seen[3].levels[0].value, rel=1e-5)
    used = gather(module, 3)
    assert used is not None
    assert used.used is not None
    assert all(level.empty for level in levels(tl, module, used.used).levels)


def test_levels_are_measured_values_at_every_end_of_a_pass() -> None:
    tl = run()
    module = tl.modules[0]
    for index in range(module.passes):
        shown = levels(tl, module, play.rest(module, index))
        for level in shown.levels:
            row = module.lanes[level.rank].passes[index]
            assert level.value == pytest.approx(float(row["norm"]), rel=1e-5)


def test_scrubbing_between_two_bucket_ends_moves_every_column_as_recorded() -> None:
    tl = run()
    module = tl.modules[0]
    made = gather(module, 3)
    assert made is not None
    ends = sorted(made.buckets["done"].tolist())
    first, last = ends[0], ends[-1]
    assert first < last
    for time in np.linspace(first, last, 7).astype(np.int64).tolist():
        shown = levels(tl, module, time)
        for level in shown.levels:
            for part, row in zip(level.parts, module.lanes[level.rank].buckets_of(3), strict=True):
                own, mean = float(row["local_norm"]) ** 2, float(row["norm"]) ** 2
                launch, done = int(row["launch"]), int(row["done"])
                if time >= done:
                    assert part.phase is Phase.SYNCED
                    assert part.square == pytest.approx(mean)
                elif time >= launch:
                    assert part.phase is Phase.MOVING
                    assert part.square == pytest.approx(own + (mean - own) * (time - launch) / (done - launch))
            total = sum(part.square for part in level.parts)
            assert level.value == pytest.approx(math.sqrt(total))


def test_a_wrong_step_leaves_the_levels_apart_and_says_since_when() -> None:
    tl = run("unsynced", windows=2)
    module, findings = tl.modules[0], find(tl)
    made = gather(module, 7)
    assert made is not None
    shown = levels(tl, module, int(made.stepped.max()), findings)
    assert {level.phase for level in shown.levels} == {Phase.WRONG}
    assert levels(tl, module, play.last_moment(module), findings).apart_since == 1


def test_a_pass_that_raised_holds_no_mean() -> None:
    """Its all-reduce was sent and brought nothing: what that rank holds is its own."""
    tl = run()
    module = tl.modules[0]
    lane = module.lanes[0]
    index = int(np.flatnonzero(lane.sync == int(Sync.SYNCED))[-1])
    lane.sync = lane.sync.copy()
    lane.sync[index] = int(Sync.UNFINISHED)
    shown = levels(tl, module, play.rest(module, index), upto=index)
    assert [level.phase for level in shown.levels] == [Phase.LOCAL, *[Phase.SYNCED] * (len(shown.levels) - 1)]


def test_what_was_not_measured_is_not_drawn_as_a_number() -> None:
    tl = run()
    module = tl.modules[0]
    for lane in module.lanes.values():
        lane.passes["flags"] &= 0xFFFF ^ int(r.PassFlag.HAS_LOCAL_NORM | r.PassFlag.HAS_NORM)
    assert all(level.value is None for level in levels(tl, module, play.rest(module, 2)).levels)


@pytest.mark.parametrize("ranks", [1, 2, 3, 40])
@pytest.mark.parametrize(("width", "height"), [(40, 3), (76, 4), (120, 20), (200, 40)])
def test_levels_fill_exactly_their_panel(ranks: int, width: int, height: int) -> None:
    tl = run(ranks=ranks, windows=1)
    module = tl.modules[0]
    shown = levels(tl, module, play.rest(module, 2))
    lines = draw_levels(shown, module, 20.0, width, height, INK, None)
    assert len(lines) == height
    assert all(len("".join(text for text, _ in line)) <= width for line in lines)


# --- time ------------------------------------------------------------------------------------------------------------


def test_story_time_and_real_time_are_each_others_inverse_and_rise() -> None:
    tl = run()
    module = tl.modules[0]
    end = play.last_moment(module)
    positions = np.linspace(0, play.story(module, end), 200).tolist()
    times = [play.moment(module, p) for p in positions]
    assert times == sorted(times)
    for position, time in zip(positions[1:-1], times[1:-1], strict=True):
        assert play.story(module, time) == pytest.approx(position, abs=0.02)


def test_every_pass_gets_a_second_of_its_own() -> None:
    tl = run()
    module = tl.modules[0]
    for index in range(module.passes - 1):
        begin, following = gather(module, index), gather(module, index + 1)
        assert begin is not None
        assert following is not None
        assert play.story(module, begin.begin) == pytest.approx(index)
        assert play.story(module, following.begin) == pytest.approx(index + 1)


def test_playing_goes_through_every_pass_and_stops_at_the_end() -> None:
    tl = run()
    cursor = play.toggle(tl, play.goto(tl, Cursor(), 0))
    seen = set()
    for _ in range(400):
        cursor = play.advance(tl, cursor, 0.05, running=False)
        seen.add(cursor.index)
    assert seen == set(range(16))
    assert not cursor.playing
    assert not cursor.live
    assert play.advance(tl, cursor, 0.05, running=False) is cursor


def test_playing_to_the_end_of_a_running_job_turns_live() -> None:
    tl = run()
    cursor = Cursor(live=False, playing=True, index=15, time=play.last_moment(tl.modules[0]) - 1)
    for _ in range(3):
        cursor = play.advance(tl, cursor, 1.0, running=True)
    assert cursor.live


def test_real_time_and_slow_motion_move_by_the_recorded_nanoseconds() -> None:
    tl = run()
    start = play.goto(tl, Cursor(speed=0.1), 0)
    there = play.advance(tl, play.toggle(tl, start), 0.01, running=False)
    assert there.time - start.time == 1_000_000


def test_live_catches_up_soon_and_then_nothing_moves() -> None:
    tl = run()
    cursor = play.settle(tl, Cursor(time=1), motion=True)
    for _ in range(60):
        cursor = play.advance(tl, cursor, 0.05, running=True)
    assert cursor.time == play.last_moment(tl.modules[0])
    assert play.advance(tl, cursor, 0.05, running=True) is cursor


def test_moves_stay_inside_and_events_are_the_recorded_ones() -> None:
    tl = run()
    cursor = play.settle(tl, Cursor(), motion=False)
    assert cursor.index == 15
    assert play.step(tl, cursor, 5).index == 15
    assert play.step(tl, cursor, -99).index == 0
    assert play.step_window(tl, cursor, -1).index == 11
    module = tl.modules[0]
    here = play.goto(tl, cursor, 3)
    back = play.step_event(tl, here, -1)
    assert back.time in play.events(module, 3)
    assert back.time < here.time
    assert play.step_event(tl, back, 1).time == here.time


def test_jumps_go_to_findings_else_to_steps() -> None:
    right, wrong = run(), run("unsynced")
    start = play.goto(right, Cursor(), 0)
    jumped = play.step_marked(right, start, [], 1)
    assert jumped is not None
    assert jumped.index == 3
    target = play.step_marked(wrong, play.goto(wrong, Cursor(), 0), find(wrong), 1)
    assert target is not None
    assert target.index in {f.backward for f in find(wrong)} | {b for f in find(wrong) for b in f.backwards}
    assert play.step_marked(right, play.goto(right, Cursor(), 15), [], 1) is None
    assert play.goto_step(right, start, 2) is not None
    assert play.goto_step(right, start, 99) is None


def test_speed_goes_up_and_down_within_its_bounds() -> None:
    cursor = Cursor()
    for _ in range(20):
        cursor = play.change_speed(cursor, 1)
    assert cursor.speed == SPEEDS[-1]
    for _ in range(20):
        cursor = play.change_speed(cursor, -1)
    assert cursor.speed == SPEEDS[0]


# --- words -----------------------------------------------------------------------------------------------------------


def test_narration_says_what_was_measured_at_each_kind_of_moment() -> None:
    tl = run()
    module = tl.modules[0]
    local = narrate(tl, play.goto(tl, Cursor(), 1))
    assert "Micro-step 1 ran inside no_sync, number 2 of its window" in local
    assert "nothing was sent" in local
    averaged = narrate(tl, play.goto(tl, Cursor(), 3))
    assert "mean of the sum of micro-steps 0 to 3" in averaged
    made = gather(module, 3)
    assert made is not None
    assert made.wire is not None
    middle = Cursor(index=3, live=False, time=(made.wire[0] + int(made.buckets["done"].min())) // 2)
    assert "is being averaged over both ranks" in narrate(tl, middle)
    stepped = Cursor(index=3, live=False, time=int(made.stepped.max()))
    assert "the optimizer used the mean gradient on both ranks" in narrate(tl, stepped)
    assert "still equal, bit for bit" in narrate(tl, stepped)


def test_narration_of_a_wrong_step() -> None:
    tl = run("unsynced")
    made = gather(tl.modules[0], 7)
    assert made is not None
    text = narrate(tl, Cursor(index=7, live=False, time=int(made.stepped.max())))
    assert "each rank stepped with its own gradients; micro-steps 4 to 7 ran without an all-reduce" in text
    assert "different models" in text


def test_narration_of_a_step_that_differs_between_ranks() -> None:
    tl = run("mixed")
    made = gather(tl.modules[0], 7)
    assert made is not None
    text = narrate(tl, Cursor(index=7, live=False, time=max(made.rest + 1, int(made.stepped.max()))))
    assert "rank 0 used averaged gradients" in text
    assert "rank 1 used averaged ones with more of its own added" in text


def test_narration_before_there_is_anything() -> None:
    assert "imports torch" in before_the_module(Timeline())
    assert "imports torch" in narrate(Timeline(), Cursor())


@pytest.mark.parametrize("mistake", [*synth.MISTAKES, *synth.RIGHT])
def test_everything_can_be_looked_at_in_every_run(mistake: str) -> None:
    tl = run(mistake)
    findings = find(tl)
    for cursor in (Cursor(), Cursor(live=False, index=3)):
        cursor = play.settle(tl, cursor, motion=False)
        for _ in range(12):
            assert narrate(tl, cursor)
            for module in tl.modules:
                levels(tl, module, cursor.time, findings)
            cursor = play.step_event(tl, cursor, 1) if not cursor.live else play.step(tl, cursor, -1)
    rows(tl, columns=40, pitch=6)


def test_a_hang_names_who_waits_and_where() -> None:
    tl = run("hang")
    here = situation(tl, tl.now_ns + 31_000_000_000, True)
    assert here.state is State.WAITING
    assert here.since >= 31_000_000_000
    text = "\n".join(line for line, _ in hang_lines(tl, here, tl.now_ns + 31_000_000_000))
    assert "all-reduce" in text
    assert "barrier" in text
    assert "train.py:" in text


def test_situations() -> None:
    assert situation(Timeline(), 0, True).state is State.STARTING
    assert situation(run(), run().now_ns, True).state is State.RUNNING
    assert situation(run(), 0, False).state is State.FINISHED
    assert situation(run("failed"), 0, False).state is State.FAILED
    assert situation(Timeline(), 0, True, error="gone").state is State.LOST


# --- the tables ------------------------------------------------------------------------------------------------------


def test_no_key_is_bound_twice_and_none_belongs_to_the_terminal() -> None:
    names = [name for key in KEYS for name in key.keys.split(",")]
    assert len(names) == len(set(names))
    assert not set(names) & {"ctrl+b", "ctrl+i", "ctrl+m", "ctrl+s", "ctrl+q", "ctrl+z"}
    assert all(key.help for key in KEYS)
    assert [key.shown for key in KEYS if key.action.startswith("view(")] == [str(i + 1) for i in range(len(VIEWS))]


def test_every_theme_has_every_role() -> None:
    for theme in THEMES:
        assert set(ROLES) <= set(theme.variables), theme.name


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64, 1024])
@pytest.mark.parametrize(("width", "height"), [(60, 13), (80, 21), (120, 37), (200, 57)])
@pytest.mark.parametrize("trouble", [False, True])
def test_the_panels_share_the_screen_to_the_last_line(width: int, height: int, ranks: int, trouble: bool) -> None:
    shared = plan(width, height, ranks, trouble)
    assert shared.sync + shared.levels + shared.story == height
    assert shared.sync >= 5
    assert shared.levels == 0 or shared.levels >= 4


def test_no_name_in_a_trace_drives_the_terminal() -> None:
    line = strip([("a\x1b[31mb\x07c\u202e", Style())], 12, Style())
    assert line.text.isprintable()
    assert line.cell_length == 12


def test_local_sgd_is_not_said_to_have_averaged_its_gradients() -> None:
    right, local = run(), run("local-sgd")
    assert "all 4 steps so far used averaged" in _all_right(right, Cursor(index=0))
    assert "0 of" in _all_right(local, Cursor(index=0))
