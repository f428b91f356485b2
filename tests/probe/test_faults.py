"""Faults of ours never reach the job: every guarded callable fails in turn, and the training keeps its bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpviz.trace import records as r
from tests.jobs import run_ranks
from tests.probe.watching import SCRIPTS, environment, records, watch

BITS = SCRIPTS / "bits.py"


def lines(output: str) -> list[str]:
    """What the script printed of its parameters and random state, by rank."""
    return sorted(re.findall(r"rank \d windows \d+ digest \w+ rng [\d.]+", output))


@pytest.mark.parametrize("fault", ["exception", "memory", "block"])
def test_every_callback_may_fail(tmp_path: Path, fault: str) -> None:
    """TEST_BLOCK_S=5 in the environment has each of them block for five seconds (two minutes in all)."""
    done, _ = watch(BITS, 2, ["--fault", fault], tmp_path / "run", limit=400)
    assert done.codes == [0, 0], done.output
    watched = lines(done.output)
    windows = re.search(r"windows (\d+)", watched[0])
    assert windows is not None
    assert int(windows[1]) > 15, "every guarded callable has its turn"
    plain = run_ranks(BITS, 2, ["--windows", windows[1]])
    assert watched == lines(plain.output)
    notes = [n.text for n in records(tmp_path / "run", r.Note)]
    assert any("could not record" in text for text in notes), "a fault of ours is said"


def test_a_run_folder_removed_or_unwritable(tmp_path: Path) -> None:
    plain = run_ranks(BITS, 2)
    gone = tmp_path / "gone" / "deeper"  # was never made: nothing can be written
    (tmp_path / "file").write_text("in the way")
    for folder in (gone, tmp_path / "file"):
        done = run_ranks(BITS, 2, env=environment(folder))
        assert done.codes == [0, 0], done.output
        assert lines(done.output) == lines(plain.output)


def test_a_fork_writes_nothing(tmp_path: Path) -> None:
    done, timeline = watch(BITS, 1, ["--end", "fork"], tmp_path / "run")
    assert done.codes == [0], done.output
    assert len(list((tmp_path / "run" / "trace").iterdir())) == 1
    exit = timeline.ranks[0].exit
    assert exit is not None
    assert exit.reason == "finished"


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ("raise", 1, "exception"),
        ("exit3", 3, "finished"),
        ("os5", 5, "os._exit"),
        ("kill", -9, None),
        ("term", -15, None),
        ("systemexit4", 4, "finished"),
    ],
)
def test_exit_codes_stay_and_are_noted(tmp_path: Path, end: str, code: int, reason: str | None) -> None:
    done, timeline = watch(BITS, 1, ["--end", end], tmp_path / "run")
    assert done.codes == [code], done.output
    exit = timeline.ranks[0].exit
    if reason is None:
        assert exit is None, "a process that was killed has no last word"
    else:
        assert exit is not None
        assert exit.reason == reason
    assert timeline.modules[0].passes == 8, "nothing recorded up to the end is lost"
    if end == "raise":
        assert exit is not None
        assert "the script's own error" in exit.error
        assert "ValueError: the script's own error" in done.output


def test_a_full_disk_a_dead_writer_and_a_removed_file(tmp_path: Path) -> None:
    """One after the other in one job: the bits stay, what was lost is counted, what came after is there."""
    done, timeline = watch(BITS, 2, ["--fault", "disk", "--windows", "10"], tmp_path / "run")
    assert done.codes == [0, 0], done.output
    plain = run_ranks(BITS, 2, ["--windows", "10"])
    assert lines(done.output) == lines(plain.output)
    lane = timeline.modules[0].lanes[0]
    indices = [int(row["index"]) for row in lane.passes if row["begin"]]
    assert indices[-1] == 39, "the writer thread died, and the exiting rank wrote what it had"
    assert set(range(16, 40)) <= set(indices), "what came when there was room again"
    dropped = [d for d in records(tmp_path / "run", r.Dropped) if "No space left" in d.why]
    assert dropped
    assert sum(d.count for d in dropped) > 0
