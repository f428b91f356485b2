"""What the probe says of each pass and step, held against an oracle that gathers gradients over a group of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ddpviz.timeline.model import Gradients, Replicas, Sync
from ddpviz.trace.records import PassFlag
from tests.probe.watching import SCRIPTS, watch

PATTERN = "local local synced synced local synced | local synced | synced | synced local | synced local | local"
STEPS = ["synced", "synced", "synced", "stale", "stale", "local"]


@pytest.mark.parametrize(
    ("nproc", "way", "variant"),
    [
        (2, "collectives", "plain"),
        (3, "collectives", "views"),
        (2, "comm-hook", "views"),
        (3, "comm-hook", "plain"),
        (2, "collectives", "no flags"),
        (3, "comm-hook", "no flags"),
    ],
)
def test_every_pattern(tmp_path: Path, nproc: int, way: str, variant: str) -> None:
    env = {"DDPVIZ_OBSERVE": way} | ({"PATTERNS_WITHOUT_FLAGS": "1"} if variant == "no flags" else {})
    args = ["--views"] if variant == "views" else []
    done, timeline = watch(SCRIPTS / "patterns.py", nproc, args, tmp_path / "run", env=env)
    assert done.codes == [0] * nproc, done.output
    found = re.search(r"ORACLE (.*)", done.output)
    assert found is not None
    oracle = json.loads(found[1])
    module = timeline.modules[0]
    assert module.ranks == tuple(range(nproc))
    words = [Sync(v).word for v in module.verdicts]
    assert words == PATTERN.replace("| ", "").split()
    for index, truth in enumerate(oracle["backwards"]):
        assert truth["equal"] == (words[index] == "synced"), index
        for rank, lane in module.lanes.items():
            row = lane.passes[index]
            flags = int(row["flags"])
            assert flags & PassFlag.HAS_NORM
            if flags & PassFlag.FORWARD_SEEN:
                assert 0 < row["forward"] < row["forward_end"] <= row["begin"] < row["end"]
            assert row["norm"] == pytest.approx(truth["norms"][rank], rel=1e-6)
            assert bool(flags & PassFlag.FLAGS_KNOWN) == (variant != "no flags")
    assert [s.gradients.word for s in timeline.steps] == STEPS
    diverged = False
    for step, equal in zip(timeline.steps, oracle["steps"], strict=True):
        assert step.replicas is (Replicas.EQUAL if equal else Replicas.DIVERGED)
        diverged = diverged or not equal
    assert diverged, "the script's last steps are mistakes"
    assert timeline.steps[3].parts[0].gradients is Gradients.STALE


def test_local_norms_are_the_sum_before_averaging(tmp_path: Path) -> None:
    """The mean's norm follows from the local ones only if they were read before averaging: rank 0's local norm of a
    first synced pass equals the norm of the same pass run by rank 0 alone."""
    script = SCRIPTS / "one_pass.py"
    alone, one = watch(script, 1, [], tmp_path / "alone")
    both, two = watch(script, 2, [], tmp_path / "both")
    assert alone.codes == [0]
    assert both.codes == [0, 0]
    truth = float(one.modules[0].lanes[0].passes[0]["norm"])
    row = two.modules[0].lanes[0].passes[0]
    assert float(row["local_norm"]) == pytest.approx(truth, rel=1e-6)
    assert float(row["norm"]) != pytest.approx(truth, rel=1e-3)
    printed = re.search(r"rank 0 norm ([\d.]+)", alone.output)
    assert printed is not None
    assert float(printed[1]) == pytest.approx(truth, rel=1e-6)
