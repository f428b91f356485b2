"""A job that says nothing: told by its processes' work, whether it computes, loads or hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import run_ddpviz

from ddpviz.headless.pulse import Pulse


class Processes:
    """Two processes, by id, and what they have printed."""

    def __init__(self) -> None:
        self.work, self.printed = {1: 5.0, 2: 5.0}, 0
        self.pulse = Pulse(lambda: dict(self.work), lambda: self.printed)

    def seconds(self, start: int, end: int, **each: float) -> None:
        for now in range(start, end):
            for name, work in each.items():
                self.work[int(name[1:])] += work
            self.pulse.look(float(now))


def test_still_since_nobody_works() -> None:
    job = Processes()
    job.seconds(0, 5, _1=0.5)
    assert job.pulse.still_for(4.0) == 0
    job.seconds(5, 20, _1=0.01, _2=0.01)  # threads that only watch
    assert job.pulse.still_for(19.0) == 15.0


def test_one_that_works_may_serve_another() -> None:
    job = Processes()
    job.seconds(0, 10, _2=0.5)
    assert job.pulse.still_for(9.0) == 0
    assert job.pulse.still_for(9.0, without={2}) == 9.0


@pytest.mark.parametrize("what", ["prints", "starts", "ends"])
def test_what_is_heard_is_life(what: str) -> None:
    job = Processes()
    job.seconds(0, 10)
    if what == "prints":
        job.printed = 10
    elif what == "starts":
        job.work[3] = 0.0
    else:
        del job.work[2]
    job.seconds(10, 12)
    assert job.pulse.still_for(11.0) == 1.0


def test_looks_that_come_too_soon_say_nothing() -> None:
    job = Processes()
    for k in range(100):
        job.work[1] += 0.005  # half a core
        job.pulse.look(k / 100)
    assert job.pulse.still_for(0.99) == pytest.approx(0.99)
    job.pulse.look(1.5)
    assert job.pulse.still_for(1.5) == 0


@pytest.mark.timeout(100)
def test_a_script_that_never_gets_as_far_as_torch(tmp_path: Path) -> None:
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text("import time\ntime.sleep(1000)\nimport torch\n")
    done = run_ddpviz(
        "check", "-n", "2", "--backend", "gloo", "--hang-after", "1", "--json", str(report), str(script),
        env={"DDPVIZ_RUN_DIR": str(tmp_path / "runs")}, limit=80,
    )  # fmt: skip
    assert (done.code, done.left) == (3, []), done.output
    found = json.loads(report.read_text())
    assert found["run"]["status"] == "hung"
    (finding,) = found["findings"]
    assert (finding["rule"], finding["ranks"]) == ("collective-hang", [0, 1])
    assert "Rank 1 has not said anything yet: it did not get as far as importing torch." in finding["message"]
    assert "before it imports torch" in finding["advice"]
