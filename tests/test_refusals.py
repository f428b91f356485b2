"""PyTorch's obscure errors, provoked for real on the torch that runs the tests, and what ddpviz makes of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import synth
from jobs import run_command
from simcluster import Cluster, Rank, Steps

from ddpviz.findings import find, refusals
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r

HERE = Path(__file__).parent / "findings"
# case of refusals_job.py: kind, words of the explanation, words of the advice
WANT = {
    "unused": ("unused", "left 2.weight and 2.bias without a gradient", "find_unused_parameters=True"),
    "twice": ("twice", "body.bias received its gradient twice", "use_reentrant=False"),
    "static_no_sync": ("static-no-sync", "the very first backward may not run under no_sync()", "first micro-step"),
    "static_unused": ("static-unused", "2.weight and 2.bias got a gradient in the first iteration", "static_graph"),
    "static_changed": ("static-changed", "that the first iteration did not use", "static_graph"),
    "models_count": ("models", "rank 0 has 2 trainable parameters and rank 1 has 4", "all ranks share"),
    "models_shape": ("models", "parameter number 0 has the sizes [6, 5] on rank 1", "all ranks share"),
    "monitored": ("monitored", "rank 1 did not come to the monitored barrier", "rank 1"),
    "timeout": ("timeout", "until the process group's time-out", "same collectives in the same order"),
    "hook": ("hook", "a second time", "one hook"),
    "no_group": ("no-group", "before the process group was there", "init_process_group()"),
    "no_env": ("no-env", "found no RANK in the environment", "torchrun"),
    "nccl": ("nccl", "NVIDIA GPUs only", "--cpu"),
    "frozen": ("frozen", "no trainable parameter", "unfreeze"),
    "devices": ("devices", "on another device", "device_ids"),
    "clients": ("clients", "only 1 of 2 ranks", "rank that is missing"),
}


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    done = run_command([sys.executable, str(HERE / "refusals_job.py")], limit=200)
    line = next(line for line in done.output.splitlines() if line.startswith("RESULT "))
    found: dict[str, list[str]] = json.loads(line.removeprefix("RESULT "))
    return found


def timeline(*, where: str, message: str = "", error: str = "", rank: int = 0, **state: object) -> Timeline:
    """A job in which one rank was refused with this message, or ended with this error."""

    def train(me: Rank) -> Steps:
        yield from me.backward()
        if me.rank == rank:
            if where:
                me.say(r.Refused(me.now, where, "RuntimeError", message, me.site("backward"), 0, me.states[0].index))
            me.fail(error or f"RuntimeError: {message}")

    tl = Cluster(2).run(train).timeline()
    for name, value in state.items():
        setattr(tl.ranks[rank], name, value)
    return tl


def refused(tl: Timeline) -> Finding:
    found = [f for f in find(tl) if f.rule == "torch-refused"]
    assert len(found) == 1
    return found[0]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", WANT)
def test_real_errors_are_explained(said: dict[str, list[str]], case: str) -> None:
    kind, message, advice = WANT[case]
    texts = [t for t in said[case] if t and "Connection" not in t]
    assert texts, said[case]
    text = texts[0]
    rank = 1 if case == "models_shape" else 0
    first = next(x for x in refusals.REFUSALS if x.pattern.search(text))
    assert first.kind == kind
    where = "constructor" if case.startswith("models") else "backward"
    for tl in (
        timeline(where=where, message=text.partition(": ")[2], rank=rank),
        timeline(where="", error=text, rank=rank),
    ):
        finding = refused(tl)
        assert message in finding.message
        assert advice in finding.advice
        assert "could not be judged" not in str(find(tl))


@pytest.mark.timeout(240)
def test_detail_on_gloo_crashes(said: dict[str, list[str]]) -> None:
    if said["detail"] == ["", ""]:
        pytest.skip("this torch builds DDP on gloo with TORCH_DISTRIBUTED_DEBUG=DETAIL, as 2.4 and 2.7 do")
    assert said["detail"] == ["(died: signal 11)"] * 2


def test_the_crash_of_detail_on_gloo_is_explained() -> None:
    tl = synth.cluster_of("died", ranks=2).timeline()
    state = tl.ranks[1]
    state.signal, state.debug, state.backend = 11, "DETAIL", "gloo"
    assert "TORCH_DISTRIBUTED_DEBUG" in refused(tl).advice
    state.debug = ""
    assert [f.rule for f in find(tl) if f.severity > 0] == ["rank-died"]


# not provoked here for want of GPUs: NCCL 2.19 and PyTorch 2.x in public reports
DUPLICATE = (
    "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1691, invalid usage\n"
    "Last error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 2000"
)
WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4, "
    "NumelOut=4, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
)


@pytest.mark.parametrize(("text", "words"), [(DUPLICATE, "ranks 0 and 1 use the same GPU"), (WATCHDOG, "within 600 s")])
def test_nccl_errors_are_explained(text: str, words: str) -> None:
    assert words in refused(timeline(where="", error=text)).message


def test_an_error_of_the_scripts_own_is_not_explained() -> None:
    tl = timeline(where="forward", message="mat1 and mat2 shapes cannot be multiplied (3x5 and 6x5)")
    assert [f.rule for f in find(tl) if f.severity > 0] == ["rank-died"]


def test_an_error_that_the_script_caught_is_no_finding() -> None:
    def train(me: Rank) -> Steps:
        me.say(r.Refused(me.now, "backward", "RuntimeError", "Expected to mark a variable ready only once", 1, 0, 0))
        yield from me.backward()
        me.step()

    assert find(Cluster(2).run(train).timeline()) == []
