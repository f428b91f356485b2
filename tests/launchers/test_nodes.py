"""Two torchrun agents are one run: in network namespaces where the machine allows it, with clocks far apart always."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpviz.export.load import load
from tests.jobs import Done, free_port, run_command

HERE = Path(__file__).parent


@contextlib.contextmanager
def two_hosts() -> Iterator[list[tuple[list[str], str, dict[str, str]]] | None]:
    """Two network namespaces joined by a cable: how to run in each, its address, its environment. None: not here."""
    names, cable = [f"ddpviz-{os.getpid()}-{k}" for k in "ab"], [f"dv{os.getpid()}{k}" for k in "ab"]
    addresses = ["10.213.77.1", "10.213.77.2"]

    def ip(*words: str, must: bool = True) -> None:
        subprocess.run(["ip", *words], check=must, capture_output=True, timeout=20)

    if sys.platform != "linux" or shutil.which("ip") is None:
        yield None
        return
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", cable[0], "netns", names[0], "type", "veth", "peer", "name", cable[1], "netns", names[1])
            for name, end, address in zip(names, cable, addresses, strict=True):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
                for device in (end, "lo"):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.SubprocessError):
            yield None
            return
        yield [
            (["ip", "netns", "exec", name], address, {"GLOO_SOCKET_IFNAME": end})
            for name, address, end in zip(names, addresses, cable, strict=True)
        ]
    finally:
        for name in names:
            ip("netns", "del", name, must=False)


def test_two_agents_are_one_run(tmp_path: Path) -> None:
    run, done = tmp_path / "run", {}
    with two_hosts() as hosts:
        where = hosts or [([], "127.0.0.1", {})] * 2
        port = str(free_port())

        def agent(number: int) -> None:
            inside, address, env = where[number]
            torchrun = [str(Path(sys.executable).parent / "torchrun"), "--nnodes", "2", "--node-rank", str(number)]
            torchrun += ["--master-addr", where[0][1], "--master-port", port, "--local-addr", address]
            watch = ["-m", "ddpviz", "run", "--no-ui", "--budget", "full", "--run-dir", str(run), "--"]
            command = [*inside, sys.executable, *watch, *torchrun, "--nproc-per-node", "1", str(HERE / "on_a_node.py")]
            done[number] = run_command(command, env=env, limit=100)

        agents = [threading.Thread(target=agent, args=(number,)) for number in (0, 1)]
        agents[0].start()
        while agents[0].is_alive() and not (run / "run.json").exists():  # the second joins the first one's run
            agents[0].join(0.05)
        agents[1].start()
        for one in agents:
            one.join()
    ended: list[Done] = [done[0], done[1]]
    assert [one.code for one in ended] == [0, 0], ended[0].output + ended[1].output
    assert [one.left for one in ended] == [[], []]
    tl = load(run)
    assert {state.host for state in tl.ranks.values()} == {"node-a", "node-b"}
    (module,) = tl.modules
    assert sorted(module.lanes) == [0, 1]
    assert module.verdicts.tolist() == [0, 1] * 40
    assert [step.replicas.word for step in tl.steps] == ["equal"] * 40
    other = next(state.rank for state in tl.ranks.values() if state.host != tl.ranks[0].host)
    clock = tl.clocks[tl.ranks[other].host]
    assert abs(abs(clock.offset_ns) - 3_000_000_000) < 100_000_000  # what the wall clocks are apart
    assert clock.error_ns < 100_000_000
    ends = [module.lanes[rank].buckets["done"] for rank in (0, 1)]
    assert abs(int(sorted(ends[0] - ends[1])[20])) < 50_000_000  # in the median they end together
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def test_namespaces_where_they_are_allowed() -> None:
    """Says why the test above ran on one network, if it did."""
    with two_hosts() as hosts:
        if hosts is None:
            pytest.skip("this machine allows no network namespaces: the agents ran on one network")
        inside, _, _ = hosts[1]
        seen = subprocess.run([*inside, "ip", "-o", "link"], capture_output=True, text=True, timeout=20).stdout
        assert len(seen.splitlines()) == 2
