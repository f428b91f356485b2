"""Who waits for whom: decided from the state of the ranks alone, and seen on jobs that hang or only look like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import synth
from jobs import run_ddpviz
from simcluster import Cluster, Net, Rank, Steps

from ddpviz.findings import find, hang
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r

SCRIPT = Path(__file__).parent / "findings" / "hangs.py"
S = 1_000_000_000
LIMIT = 10 * S


def live(shape: str = "hang", ranks: int = 2, **how: Any) -> Timeline:
    """A job that hangs, seen while it still runs."""
    tl = synth.cluster_of(shape, ranks=ranks, **how).timeline()
    tl.run.status = "running"
    for state in tl.ranks.values():
        state.exit_code = state.signal = None
        state.exit = None
        state.beat_ns = tl.now_ns
    return tl


def since(tl: Timeline) -> int:
    return max(max(s.stack.since if s.stack else 0, s.progress_ns) for s in tl.ranks.values())


def test_stuck_only_after_the_limit() -> None:
    tl = live()
    began = since(tl)
    assert hang.stuck(tl, began + LIMIT - 1, LIMIT) is None
    found = hang.stuck(tl, began + LIMIT, LIMIT)
    assert found is not None
    assert [w.rank for w in found.waiting] == [0]
    assert [m.rank for m in found.missing] == [1]
    assert found.waiting[0].what.startswith("the all-reduce of bucket 0 (2.bias and 2.weight) in micro-step 7")
    assert found.missing[0].doing.startswith("has waited in a barrier (train.py:30)")
    assert "for rank 1, which will not come" in found.message
    assert found.site.line == 30


def test_the_majority_names_the_odd_one() -> None:
    tl = live(ranks=4)
    found = hang.stuck(tl, since(tl) + LIMIT, LIMIT)
    assert found is not None
    assert [w.rank for w in found.waiting] == [0, 1, 2]
    assert [m.rank for m in found.missing] == [3]
    assert found.message.startswith("Ranks 0-2 have waited 10 s in the all-reduce")


def free(tl: Timeline, rank: int, **state: Any) -> None:
    """That rank is in no collective."""
    tl.ranks[rank].stack = None
    for name, value in state.items():
        setattr(tl.ranks[rank], name, value)


@pytest.mark.parametrize("busy", [True, False])
def test_a_rank_that_computes_is_not_stuck(busy: bool) -> None:
    tl = live()
    now = since(tl) + 30 * S
    free(tl, 1, beat_ns=now, cpu_ns=5 * S, busy_ns=now if busy else 0)
    assert (hang.stuck(tl, now, LIMIT) is None) is True  # idle outside any collective: it may be reading from a disk
    later = since(tl) + 4 * LIMIT + S
    free(tl, 1, beat_ns=later, busy_ns=later if busy else 0)
    found = hang.stuck(tl, later, LIMIT)
    assert (found is None) is busy
    if found is not None:
        assert found.missing[0].state == "idle"
        assert "last it did: " in found.message


def test_a_rank_whose_cpu_time_is_unknown_is_given_the_benefit_of_the_doubt() -> None:
    tl = live()
    now = since(tl) + 10 * LIMIT
    free(tl, 1, beat_ns=now, cpu_ns=-1)
    assert hang.stuck(tl, now, LIMIT) is None


def test_an_interpreter_that_does_not_answer() -> None:
    tl = live()
    now = since(tl) + LIMIT + S
    free(tl, 1, beat_ns=now - LIMIT - S, cpu_ns=S)
    found = hang.stuck(tl, now, LIMIT)
    assert found is not None
    assert found.missing[0].state == "silent"
    assert "GIL" in found.advice


def test_a_rank_that_ended() -> None:
    tl = live()
    now = since(tl) + LIMIT
    free(tl, 1, exit=r.Exit(now - LIMIT, 0, "finished"))
    found = hang.stuck(tl, now, LIMIT)
    assert found is not None
    assert "Rank 1 has finished its script" in found.message
    assert "join" in found.advice


def test_a_rank_that_was_never_heard_of() -> None:
    tl = live()
    del tl.ranks[1]
    began = since(tl)
    assert hang.stuck(tl, began + LIMIT, LIMIT) is None  # it may be importing
    found = hang.stuck(tl, began + 4 * LIMIT, LIMIT)
    assert found is not None
    assert found.missing[0].state == "unknown"


def test_all_in_one_collective_may_just_be_slow() -> None:
    tl = live()
    one = tl.ranks[0].stack
    assert one is not None
    tl.ranks[1].stack = one
    began = since(tl)
    assert hang.stuck(tl, began + LIMIT, LIMIT) is None
    found = hang.stuck(tl, began + 4 * LIMIT, LIMIT)
    assert found is not None
    assert found.missing == ()
    assert "All its ranks are there" in found.message


def test_nobody_waits() -> None:
    tl = synth.cluster_of(None).timeline()
    assert hang.stuck(tl, tl.now_ns + 100 * LIMIT, LIMIT) is None
    assert hang.waiters(tl) == []


def test_a_group_of_some_ranks_concerns_them_alone() -> None:
    def train(me: Rank) -> Steps:
        if me.rank == 1:
            return
        yield from me.backward()
        me.step()
        me.clear()
        if me.rank == 0:
            yield from me.barrier(1)

    tl = Cluster(3, [Net(ranks=(0, 2))]).run(train).timeline()
    found = hang.stuck(tl, tl.now_ns, 0)
    assert found is not None
    assert [w.rank for w in found.waiting] == [0]
    assert [m.rank for m in found.missing] == [2]


def test_a_chain_of_waits_for_one_that_computes_is_no_hang() -> None:
    """Rank 0 waits for rank 2 in a group of two; rank 2 waits for everybody; rank 1 computes."""

    def train(me: Rank) -> Steps:
        if me.rank == 0:
            yield from me.barrier(1)
        if me.rank == 2:
            yield from me.barrier(0)

    tl = Cluster(3, [Net(ranks=(0, 2))]).run(train).timeline()
    tl.run.status = "running"
    now = tl.now_ns + 10 * LIMIT
    for state in tl.ranks.values():
        state.exit = state.signal = state.exit_code = None
        state.beat_ns, state.cpu_ns = now, S
    tl.ranks[1].busy_ns = now
    assert {w.rank for w in hang.waiters(tl)} == {0, 2}
    assert hang.stuck(tl, now, LIMIT) is None
    tl.ranks[1].busy_ns = 0
    assert hang.stuck(tl, now, LIMIT) is not None


def test_a_running_job_has_no_hang_finding() -> None:
    assert "collective-hang" not in {f.rule for f in find(live())}


# --- real jobs --------------------------------------------------------------------------------------------------------


def check(tmp_path: Path, name: str, ranks: int, after: int) -> tuple[int | None, dict[str, Any]]:
    report = tmp_path / "report.json"
    done = run_ddpviz(
        "check", "-n", str(ranks), "--backend", "gloo", "--hang-after", str(after), "--json", str(report), str(SCRIPT),
        name, env={"DDPVIZ_RUN_DIR": str(tmp_path / "runs")}, limit=150,
    )  # fmt: skip
    assert not done.timed_out, done.output
    assert done.left == []
    assert report.exists(), done.output
    return done.code, json.loads(report.read_text())


HANGS = {  # ranks, missing, line to look at, words of the message
    "barrier": (2, [1], 34, "Rank 1 has waited in a barrier (hangs.py:34)"),
    "subgroup": (3, [0], 44, "Rank 0 has waited in an all-reduce of ranks 0 and 2 (hangs.py:44)"),
    "before_init": (2, [1], 61, "in init_process_group() (hangs.py:17) for rank 1"),
    "asleep": (2, [1], 70, "Rank 1 has been idle outside any collective (hangs.py:70)"),
    "gil": (2, [1], 24, "Rank 1 has an interpreter that has not answered"),
}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", HANGS)
def test_real_hangs(tmp_path: Path, name: str) -> None:
    ranks, missing, line, words = HANGS[name]
    code, report = check(tmp_path, name, ranks, 4)
    assert (code, report["run"]["status"]) == (3, "hung")
    finding = next(f for f in report["findings"] if f["rule"] == "collective-hang")
    assert finding["ranks"] == missing
    assert words in finding["message"]
    assert finding["where"]["line"] == line


@pytest.mark.timeout(200)
def test_a_hang_in_the_constructor(tmp_path: Path) -> None:
    code, report = check(tmp_path, "constructor", 2, 4)
    assert (code, report["run"]["status"]) == (3, "hung")
    finding = next(f for f in report["findings"] if f["rule"] == "collective-hang")
    assert "the constructor of DistributedDataParallel" in finding["message"]
    assert "a barrier (hangs.py:52)" in finding["message"]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["computing", "short_sleep"])
def test_slow_ranks_are_no_hang(tmp_path: Path, name: str) -> None:
    code, report = check(tmp_path, name, 2, 6)
    assert (code, report["run"]["status"]) == (0, "finished")
    assert [f for f in report["findings"] if f["severity"] != "info"] == []
