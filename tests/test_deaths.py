"""A rank that ends before the others, for real: it raises, is killed, leaves by os._exit, or early and well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import run_ddpviz
from simcluster import Cluster, Rank, Steps

from ddpviz.findings import find

SCRIPT = Path(__file__).parent / "findings" / "deaths.py"
LOST = "because the connection to it was gone"
# how rank 1 ends: the rule, its exit code and signal, its line, words of the message, the end of its log
DEATHS = {
    "raises": (
        "rank-died", 1, None, 25, ["exception: ValueError: a bad sample (deaths.py:25)", "The last it did: step 2"],
        "the last line of rank 1",
    ),
    "killed": ("rank-died", None, 9, None, ["killed by signal 9 (SIGKILL)", "The last"], "the last line of rank 1"),
    "leaves": ("rank-died", 7, None, None, ["by os._exit(7)", "The last it did: step 2"], "the last line of rank 1"),
    "early": (
        "uneven-ranks", 0, None, 40,
        ["Rank 1 had come to the end of its script by then (exit code 0; the last it did: step 2", LOST], "",
    ),
}  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", DEATHS)
def test_deaths(tmp_path: Path, name: str) -> None:
    rule, code, signum, line, words, log = DEATHS[name]
    path = tmp_path / "report.json"
    done = run_ddpviz(
        "check", "-n", "2", "--backend", "gloo", "--hang-after", "20", "--json", str(path), str(SCRIPT), name,
        env={"DDPVIZ_RUN_DIR": str(tmp_path / "runs")}, limit=100,
    )  # fmt: skip
    assert (done.code, done.left) == (3, []), done.output
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["run"]["status"] == "failed"
    dead = report["run"]["ranks"][1]
    assert (dead["rank"], dead["exit_code"], dead["signal"]) == (1, code, signum)
    (finding,) = (f for f in report["findings"] if f["severity"] == "error")
    assert (finding["rule"], finding["ranks"]) == (rule, [1])
    assert (finding["where"] or {}).get("line") == line
    for text in words:
        assert text in finding["message"]
    assert log in done.output


@pytest.mark.timeout(120)
def test_tensors_of_different_size_are_explained(tmp_path: Path) -> None:
    """gloo ends the process that receives too much, from a thread of its own: its words are in the log alone."""
    path = tmp_path / "report.json"
    done = run_ddpviz(
        "check", "-n", "2", "--backend", "gloo", "--hang-after", "20", "--json", str(path), str(SCRIPT), "mismatch",
        env={"DDPVIZ_RUN_DIR": str(tmp_path / "runs")}, limit=100,
    )  # fmt: skip
    assert (done.code, done.left) == (3, []), done.output
    (finding,) = (f for f in json.loads(path.read_text())["findings"] if f["severity"] == "error")
    assert finding["rule"] == "torch-refused"
    assert "two ranks are in different collectives, or bring tensors of different size" in finding["message"]


def test_a_rank_that_leaves_while_others_need_it_outside_any_pass() -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward()
        me.step()
        if me.rank == 0:
            me.fail("RuntimeError: [...] Connection closed by peer [127.0.0.1]:40119")

    tl = Cluster(2).run(train).timeline()
    (finding,) = (f for f in find(tl) if f.severity > 1)
    assert (finding.rule, finding.ranks, finding.line) == ("rank-died", (1,), 18)
    assert finding.message.startswith("Rank 1 came to the end of its script (exit code 0) while others still needed it")
    assert LOST in finding.message


def test_a_rank_that_fails_before_it_has_wrapped_anything() -> None:
    def train(me: Rank) -> Steps:
        if me.rank == 1:
            me.fail("FileNotFoundError: settings.json")
        yield from me.barrier()

    (finding,) = (f for f in find(Cluster(2, nets=()).run(train).timeline()) if f.severity > 1)
    assert (finding.rule, finding.ranks) == ("rank-died", (1,))
    assert "FileNotFoundError: settings.json" in finding.message
    assert "It had not wrapped a model yet. Rank 0 waited for it in a barrier." in finding.message


def test_a_crash_in_gloo_that_left_its_words_in_the_log_alone() -> None:
    """The text of gloo 2.13.0, when a rank got the bytes of another collective than its own."""

    def train(me: Rank) -> Steps:
        yield from me.backward()
        if me.rank == 1:
            me.die(6)
        yield from me.barrier()

    tl = Cluster(2).run(train).timeline()
    tl.ranks[1].said = (
        "what():  [enforce fail at /__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] "
        "op.preamble.length <= op.nbytes. 64 vs 28. Received data size doesn't match expected size. Is there a "
        "distributed collective mismatch in your code?"
    )
    (finding,) = (f for f in find(tl) if f.severity > 1)
    assert (finding.rule, finding.ranks) == ("torch-refused", (1,))
    assert "one received 64 bytes where it expected 28" in finding.message
    assert "The last that is known of rank 0: micro-step 0" in finding.message


def test_ranks_that_wait_for_a_dead_one_are_said_to() -> None:
    def train(me: Rank) -> Steps:
        yield from me.backward()
        me.step()
        if me.rank == 1:
            me.die(9)
        yield from me.barrier()

    tl = Cluster(3).run(train).timeline()
    tl.run.status = "failed"
    (finding,) = (f for f in find(tl) if f.severity > 1)
    assert (finding.rule, finding.ranks) == ("rank-died", (1,))
    assert "Ranks 0 and 2 waited for it in a barrier" in finding.message
