"""Live control: every order takes effect at the same micro-step on every rank, a pause holds nobody in a collective,
and a job that was held, stepped and paced computes the same bits. A job that takes no orders has nothing of it."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import ROOT, run_ranks

from ddpviz.export.load import load
from ddpviz.launch.control import Controller, prepare
from ddpviz.launch.environment import job_environment
from ddpviz.launch.spec import JobSpec
from ddpviz.probe.gate import Gate
from ddpviz.trace import orders
from ddpviz.trace.orders import Order
from ddpviz.trace.rundir import create_run

SCRIPT = ROOT / "tests" / "scripts" / "controlled.py"
RANKS = 4
ORDERS = 500


def until(what: Callable[[], bool], control: Controller, limit: float = 60) -> None:
    end = time.monotonic() + limit
    while True:
        control.tick()
        if what():
            return
        assert time.monotonic() < end, control.standing()
        time.sleep(0.002)


def give_orders(control: Controller, seen: dict[str, object]) -> None:
    """What the person at the keyboard does."""
    control.pause()  # before any rank has started
    until(lambda: control.standing().held, control)
    seen["paused at"] = control.standing().at
    end = time.monotonic() + 6.1  # three times the group's time-out
    until(lambda: time.monotonic() > end, control)
    assert control.standing().held
    assert control.standing().at == seen["paused at"]
    for kind, count in (("backward", 1), ("backward", 3), ("step", 1), ("bucket", 1), ("bucket", 2), ("backward", 1)):
        before = control.standing().at
        control.step(kind, count)
        until(lambda: control.idle, control)
        assert control.standing().held
        seen[f"{kind} {count} from {before}"] = control.standing().at - before
    control.rest(0.01)
    control.go_on()
    until(lambda: control.idle and control.standing().at > 60, control)
    control.rest(0.0)
    until(lambda: (control.idle and control.standing().at > 90) or control.standing().over, control)
    draw = random.Random(0)
    began = time.monotonic()
    for number in range(ORDERS):
        what = draw.randrange(4)
        if what == 0:
            control.change({"accumulation": str(draw.randrange(1, 6))})
        elif what == 1:
            control.change({"no_sync": draw.choice(("on", "off")), "accumulation": str(draw.randrange(1, 6))})
        elif what == 2:
            control.pause()
        else:
            control.go_on()
        if number % 5 == 4:
            until(lambda: control.idle, control)
    seen["seconds"] = time.monotonic() - began
    control.change({"nothing": "1"})
    control.go_on()
    until(lambda: control.idle, control)
    control.change({"nothing": "1"})
    until(lambda: control.idle, control)
    seen["problem"] = control.standing().problem
    control.change({"stop": "1"})
    until(lambda: control.standing().over, control)


@pytest.mark.timeout(220)
def test_five_hundred_orders_and_a_pause_longer_than_the_time_out(tmp_path: Path) -> None:
    spec = JobSpec(script=SCRIPT, nproc=RANKS, control=("accumulation", "no_sync", "stop"), budget=0.0)
    run = create_run(None, {"title": "controlled", "world_size": RANKS}, run_dir=tmp_path / "run")
    prepare(run)
    env = job_environment({}, spec, run, "test", ranks=RANKS, hide_cuda=False)
    control, seen, failed = Controller(run, RANKS), {}, []

    def drive() -> None:
        try:
            give_orders(control, seen)
        except BaseException as error:
            failed.append(error)

    driver = threading.Thread(target=drive)
    driver.start()
    done = run_ranks(SCRIPT, RANKS, env=env, limit=160)
    driver.join(timeout=70)
    print(seen, control.standing(), f"{done.seconds:.1f} s")
    assert done.codes == [0] * RANKS, done.output
    if failed:
        raise failed[0]
    first = re.findall(r"rank \d bits (\w+) (\w+)", done.output)
    assert len(first) == RANKS
    assert len({word for pair in first for word in pair}) == 1, "held or free, the same bits"
    last = re.findall(r"rank \d micro-steps (\d+) changes (\d+) log (\w+) bits (\w+)", done.output)
    assert len(last) == RANKS
    assert len(set(last)) == 1, "every rank switched at the same micro-steps"
    assert int(last[0][1]) > ORDERS // 5
    moved = {name: value for name, value in seen.items() if " from " in name}
    kinds = [(name.rsplit(" from ", 1)[0], value) for name, value in moved.items()]
    assert kinds[:2] == [("backward 1", 1), ("backward 3", 3)]
    assert kinds[-1] == ("backward 1", 1)
    assert [kind for kind, _ in kinds[2:5]] == ["step 1", "bucket 1", "bucket 2"]
    assert all(0 <= value <= 4 for _, value in kinds[2:5]), kinds  # at most two windows of two micro-steps
    assert seen["problem"] == "the script has no option nothing that may be changed"
    assert any("changed by live control from micro-step" in note for note in load(run).run.notes)


def test_a_job_that_takes_no_orders_has_nothing_of_it(tmp_path: Path) -> None:
    run = create_run(None, {"title": "plain"}, run_dir=tmp_path / "run")
    spec = JobSpec(script=SCRIPT)
    env = job_environment({}, spec, run, "test", ranks=1, hide_cuda=False) | {"RANK": "0"}
    code = (
        "import sys, threading, torch\n"
        "from ddpviz.probe import collectives, engine, session, steps\n"
        "assert 'ddpviz.probe.control' not in sys.modules and 'ddpviz.probe.gate' not in sys.modules\n"
        "owners = [f.__module__ for f in (engine.end, steps._step_ended, collectives.begin)]\n"
        "assert owners == ['ddpviz.probe.engine', 'ddpviz.probe.steps', 'ddpviz.probe.collectives'], owners\n"
        "assert session.current().controlled is None\n"
        "print(sorted(t.name for t in threading.enumerate()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['MainThread', 'ddpviz-writer']", done.stderr
    assert not (run / orders.CONTROL).exists()


class Rank(threading.Thread):
    """A rank without torch: comes to one boundary each time it is told to."""

    def __init__(self, changes: list[dict[str, str]] | None = None) -> None:
        super().__init__(daemon=True)
        self.changes = [] if changes is None else changes
        self.gate = Gate(0, self.take)
        self.go = threading.Semaphore(0)
        self.came = threading.Semaphore(0)
        self.kinds: list[str] = []

    def take(self, wanted: dict[str, str]) -> str:
        self.changes.append(wanted)
        return ""

    def run(self) -> None:
        while True:
            self.go.acquire()
            kind = self.kinds.pop(0)
            if not kind:
                return
            self.gate.passed(kind)
            self.came.release()

    def comes(self, kind: str = "backward", within: float = 0.05) -> bool:
        """Whether it gets past the next boundary."""
        self.kinds.append(kind)
        self.go.release()
        return self.came.acquire(timeout=within)

    def free(self) -> bool:
        return self.came.acquire(timeout=5)


@pytest.fixture
def rank() -> Rank:
    made = Rank()
    made.start()
    return made


def test_a_rank_promises_only_what_it_has_not_passed(rank: Rank) -> None:
    assert rank.comes()
    assert rank.comes()
    rank.gate.hear(Order(1, at=2, then="hold"))
    assert not rank.gate.answer().promised
    rank.gate.hear(Order(2, at=3, then="hold"))
    assert rank.gate.answer().promised
    assert not rank.comes(), "it holds although nothing was confirmed"
    rank.gate.hear(Order(3, at=4, set={"x": "1"}))  # another rank was past the third: a later place is tried
    assert rank.free()
    assert not rank.comes()
    assert rank.changes == []
    rank.gate.hear(Order(3, at=4, go=True, set={"x": "1"}))
    assert rank.free()
    assert rank.changes == [{"x": "1"}]
    assert rank.gate.answer().done


def test_a_hold_is_left_by_steps_of_each_kind(rank: Rank) -> None:
    rank.gate.hear(Order(1, at=1, then="hold"))
    rank.gate.hear(Order(1, at=1, then="hold", go=True))
    assert not rank.comes()
    assert rank.gate.answer().held
    for serial, kind in enumerate(("step", "bucket", "backward"), start=2):
        at = rank.gate.answer().position
        rank.gate.hear(Order(serial, at=at, then=kind, count=2))
        rank.gate.hear(Order(serial, at=at, then=kind, count=2, go=True))
        assert rank.free()
        others = [k for k in ("step", "bucket") if k != kind]
        assert all(rank.comes(other) for other in others)
        assert rank.comes(kind)
        assert not rank.comes(kind)
        assert rank.gate.answer().held
    rank.gate.hear(Order(9, go=True, cancelled=True))
    assert rank.free()
    assert rank.comes()


def test_a_gate_that_opens_lets_everybody_go(rank: Rank) -> None:
    rank.gate.hear(Order(1, at=1, then="hold"))
    assert not rank.comes()
    rank.gate.open()
    assert rank.free()
    assert rank.gate.answer().gone


def test_an_order_for_a_job_that_ends_is_said_to_come_too_late(tmp_path: Path) -> None:
    prepare(tmp_path)
    control = Controller(tmp_path, 2)
    for number in range(2):
        orders.write(tmp_path / orders.ANSWERS / f"rank-{number}", orders.Answer(number, 0, position=3))
    control.pause()
    control.tick()
    asked = orders.read(tmp_path / orders.CONTROL, Order)
    assert asked is not None
    assert (asked.at, asked.then, asked.go) == (5, "hold", False)
    orders.write(tmp_path / orders.ANSWERS / "rank-0", orders.Answer(0, asked.serial, promised=True, position=3))
    orders.write(tmp_path / orders.ANSWERS / "rank-1", orders.Answer(1, 0, position=4, gone=True))
    control.tick()
    told = orders.read(tmp_path / orders.CONTROL, Order)
    assert told is not None
    assert told.cancelled, "rank 0 is not to wait for ever"
    standing = control.standing()
    assert standing.over
    assert standing.problem == "not done any more: pause"


def test_a_rank_that_only_shadows_the_others_is_not_waited_for(tmp_path: Path) -> None:
    """Inside `join` it has no backward any more, so it never comes to where an order takes effect."""
    prepare(tmp_path)
    control = Controller(tmp_path, 2)
    orders.write(tmp_path / orders.ANSWERS / "rank-0", orders.Answer(0, 0, position=6, passive=True))
    for then, held in (("hold", True), ("free", False)):
        (control.pause if held else control.go_on)()
        orders.write(tmp_path / orders.ANSWERS / "rank-1", orders.Answer(1, 0, position=8, held=not held))
        control.tick()
        asked = orders.read(tmp_path / orders.CONTROL, Order)
        assert asked is not None
        assert (asked.then, asked.at) == (then, 10 if held else 8)
        mine = orders.Answer(1, asked.serial, promised=True, position=8, held=not held)
        orders.write(tmp_path / orders.ANSWERS / "rank-1", mine)
        control.tick()
        mine = orders.Answer(1, asked.serial, promised=True, done=True, position=asked.at, held=held)
        orders.write(tmp_path / orders.ANSWERS / "rank-1", mine)
        control.tick()
        assert control.idle
        assert control.standing().held is held


def test_orders_and_answers_are_private_and_damage_is_no_order(tmp_path: Path) -> None:
    path = tmp_path / "control"
    orders.write(path, Order(3, at=4))
    assert path.stat().st_mode & 0o777 == 0o600
    assert orders.read(path, Order) == Order(3, at=4)
    path.write_bytes(b'{"serial": "three"}')
    assert orders.read(path, Order) is None
    assert orders.read(tmp_path / "nothing", Order) is None
