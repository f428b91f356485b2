"""The report: its documented shape on every kind of run, its numbers against a known answer, nothing guessed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
import synth

from ddpviz.export.load import load
from ddpviz.export.report import in_parts, plain, report, to_json
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.trends import traffic
from ddpviz.trace import records as r
from ddpviz.trace.reader import RunError
from ddpviz.trace.rundir import update_run

SCHEMA = json.loads((Path(__file__).parent / "report.schema.json").read_text())
FINDING = Finding(
    "unsynced-step",
    Severity.ERROR,
    "Step 1 used gradients that no all-reduce averaged.",
    "Leave no_sync for the last backward.",
    module=0,
    ranks=(0, 1),
    count=3,
    backward=4,
    step=1,
    file="/home/someone/train.py",
    line=19,
)


def strict(data: bytes) -> Any:
    """JSON as the standard has it: NaN and Infinity literals are refused."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(data, parse_constant=refuse)


@pytest.mark.parametrize("mistake", [None, *synth.MISTAKES, *synth.RIGHT], ids=str)
def test_every_kind_of_run_has_the_documented_shape(tmp_path: Path, mistake: str | None) -> None:
    tl = load(synth.write_run(tmp_path, mistake, ranks=3, modules=2))
    found = strict(to_json(tl, [FINDING]))
    jsonschema.validate(found, SCHEMA)
    assert found == report(tl, [FINDING])  # nothing in it that JSON turns into something else
    assert [rank["rank"] for rank in found["run"]["ranks"]] == [0, 1, 2]
    assert len(found["modules"]) == 2


def test_the_schema_bites(tmp_path: Path) -> None:
    found = report(load(synth.write_run(tmp_path)), [FINDING])
    found["modules"][0]["backwards"][0]["sync"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMA)


def test_what_happened_is_what_the_cluster_did(tmp_path: Path) -> None:
    found = report(load(synth.write_run(tmp_path, "stale", windows=3)), [])
    syncs = [b["sync"] for b in found["modules"][0]["backwards"]]
    assert syncs == ["local"] * 3 + ["synced"] + ["local", "local", "synced", "local"] * 2
    assert [b["window"] for b in found["modules"][0]["backwards"]] == [0] * 4 + [1] * 4 + [2] * 4
    assert [(s["index"], s["gradients"], s["replicas"], s["after_backward"], s["module"]) for s in found["steps"]] == [
        (0, "synced", "equal", [3, 3], 0),
        (1, "stale", "diverged", [7, 7], 0),
        (2, "stale", "diverged", [11, 11], 0),
    ]
    synced = found["modules"][0]["backwards"][3]["ranks"][1]
    assert not synced["no_sync_forward"]
    assert not synced["no_sync_backward"]
    assert synced["norm"] < synced["local_norm"]
    assert [b["index"] for b in synced["buckets"]] == list(range(len(synced["buckets"])))
    for bucket in synced["buckets"]:
        assert bucket["ready_ns"] <= bucket["launch_ns"] <= bucket["done_ns"]
        assert bucket["wire_bytes"] == bucket["bytes"] > 0
    local = found["modules"][0]["backwards"][0]["ranks"][0]
    assert local["no_sync_forward"]
    assert local["norm"] == local["local_norm"]


def test_a_rank_that_was_killed_and_one_that_waits_for_it(tmp_path: Path) -> None:
    found = report(load(synth.write_run(tmp_path, "died", ranks=2)), [])
    waits, died = found["run"]["ranks"]
    assert found["run"]["status"] == "failed"
    assert died["status"] == "died"
    assert died["signal"] == 9
    assert died["last_event"] == "backward 5 of MLP, local at train.py:18"
    assert waits["waiting_for"].startswith("all-reduce #2 of bucket 0 (")
    assert waits["stack"]
    assert found["modules"][0]["backwards"][-1]["sync"] == "unfinished"


def test_a_rank_that_never_spoke_stands_in_the_report(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, ranks=2)
    gone = sorted((run / "trace").iterdir())[-1]
    gone.unlink()
    found = report(load(run), [])
    missing = [rank for rank in found["run"]["ranks"] if rank["status"] == "missing"]
    assert len(missing) == 1
    assert missing[0]["last_event"] is None
    assert missing[0]["stack"] is None


def test_nan_is_a_string_and_unmeasured_is_null(tmp_path: Path) -> None:
    found = report(load(synth.write_run(tmp_path, "nan", ranks=2)), [])
    norms = [rank["local_norm"] for b in found["modules"][0]["backwards"] for rank in b["ranks"]]
    assert "nan" in norms
    assert None not in norms
    assert (plain(math.inf), plain(-math.inf), plain(math.nan), plain(1.5)) == ("inf", "-inf", "nan", 1.5)
    found = report(load(synth.write_run(tmp_path, "nan", ranks=2)), [])
    assert found["run"]["sampling"] is None


def test_sampling_says_what_was_sampled(tmp_path: Path) -> None:
    tl = load(synth.write_run(tmp_path, ranks=2))
    tl.run.budget = 2.0
    tl.modules[0].lanes[1].passes["flags"][:4] &= ~np.uint16(r.PassFlag.SAMPLED)
    assert report(tl, [])["run"]["sampling"] == {"budget_percent": 2.0, "passes": 32, "sampled": 28}


def test_bytes_sent_and_saved(tmp_path: Path) -> None:
    tl = load(synth.write_run(tmp_path, windows=5, accumulation=4))
    module = tl.modules[0]
    whole = module.numel * module.itemsize
    assert traffic(module) == (5 * whole, 15 * whole)
    redundant = load(synth.write_run(tmp_path, "redundant", windows=5)).modules[0]
    assert traffic(redundant) == (20 * whole, 0)
    unsynced = load(synth.write_run(tmp_path, "unsynced", windows=2, at=0)).modules[0]
    assert traffic(unsynced) == (0, 8 * whole)


def test_trends_are_in_the_report(tmp_path: Path) -> None:
    module = report(load(synth.write_run(tmp_path, "straggler", ranks=3)), [])["modules"][0]
    assert 0 < module["agreement"] <= 1
    assert module["noise_scale"] > 0
    by_rank = {part["rank"]: part for part in module["communication"]}
    assert [by_rank[rank]["last_in"] for rank in range(3)] == [0, 0, 4]
    assert by_rank[2]["late_ns_median"] > 1_000_000 > by_rank[0]["late_ns_median"]
    assert all(part["passes_timed"] == 4 and 0 <= part["hidden_share"] <= 1 for part in by_rank.values())
    alone = report(load(synth.write_run(tmp_path, ranks=1)), [])["modules"][0]
    assert (alone["agreement"], alone["noise_scale"]) == (None, None)


def test_a_run_whose_ddpviz_is_gone_does_not_run(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path)
    info = json.loads((run / "run.json").read_text())
    import socket

    update_run(run, status="running", host=socket.gethostname(), pid=2**31 - 5)
    assert info["status"] == "finished"
    assert load(run).run.status == "interrupted"


def test_no_run_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        load(tmp_path / "nothing")
    assert "\n" not in str(caught.value)


def test_a_torn_trace_is_a_note_and_the_rest_is_there(tmp_path: Path) -> None:
    run = synth.write_run(tmp_path, ranks=2, windows=6)
    file = sorted((run / "trace").iterdir())[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    tl = load(run)
    found = strict(to_json(tl, []))
    jsonschema.validate(found, SCHEMA)
    assert any(file.name in note for note in found["run"]["notes"])
    assert found["modules"]


def test_a_long_runs_report_in_parts_is_the_report(tmp_path: Path) -> None:
    tl = load(synth.write_big(tmp_path, 3, 11_000, wrong=[7]))
    found = strict(b"".join(in_parts(tl, [FINDING])))
    assert found == json.loads(msgspec.json.encode(report(tl, [FINDING])))
    assert len(found["modules"][0]["backwards"]) == 11_000
    assert found["steps"][7]["gradients"] == "local"
    assert max(map(len, in_parts(tl, []))) < 2 << 20  # never in memory whole
