"""The two ways to see an all-reduce, each alone, change no bit of what a job computes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import run_ranks

JOB = Path(__file__).parent / "job.py"
Case = dict[str, Any]


def switches() -> dict[str, Case]:
    """The product of what decides how the reducer divides and copies, over several buckets, and every kind of hook."""
    cases: dict[str, Case] = {}
    small: Case = {"bucket_cap_mb": 0.002}
    for views, none in itertools.product((False, True), repeat=2):
        base = small | {"gradient_as_bucket_view": views, "set_to_none": none}
        tag = f"views={views:d} none={none:d}"
        cases[f"plain {tag}"] = base | {"accumulation": 2}
        cases[f"unused {tag}"] = base | {"model": "unused", "find_unused_parameters": True, "accumulation": 3}
        cases[f"static {tag}"] = base | {"model": "shared", "static_graph": True}
        cases[f"static unused-search {tag}"] = base | {"static_graph": True, "find_unused_parameters": True}
        cases[f"sparse {tag}"] = base | {"model": "sparse"}
        cases[f"retain {tag}"] = base | {"retain": True}
        cases[f"sync every pass {tag}"] = base | {"sync_all": True, "accumulation": 3}
        cases[f"pair {tag}"] = base | {"pair": True}
        for divisor in ("initial", "active"):
            cases[f"join {divisor} {tag}"] = base | {"join": divisor}
    for hook in ("fp16", "allreduce", "own", "wrapped", "builtin-allreduce", "builtin-fp16"):
        for when in ("before", "after", "step 1"):
            cases[f"hook {hook} {when}"] = small | {"hook": hook, "hook_when": when, "accumulation": 2}
    cases["powersgd before"] = {"hook": "powersgd"}
    cases["powersgd after"] = {"hook": "powersgd", "hook_when": "after"}
    cases["second hook"] = {"second_hook": True}
    cases["second hook after a user's"] = {"hook": "own", "second_hook": True}
    cases["mixed precision"] = {"mixed": "bf16"}
    cases["sub-group"] = {"group": "pair"}
    cases["batch norm"] = {"model": "batchnorm", "accumulation": 2}
    return cases


def outcome(folder: Path, cases: dict[str, Case], ranks: int, watch: str) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    out = folder / watch
    done = run_ranks(JOB, ranks, [str(folder / "cases.json"), str(out), "--watch", watch], limit=200)
    assert done.code == 0, done.output
    assert done.left == []
    if watch != "none":
        for rank in range(ranks):
            seen = json.loads((out / f"{rank}.watch.json").read_text())
            assert seen["faults"] == {}
            assert seen["seen"] > 0
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


def differing(plain: list[dict[str, Any]], watched: list[dict[str, Any]]) -> list[str]:
    return sorted({name for p, w in zip(plain, watched, strict=True) for name in p if p[name] != w.get(name)})


@pytest.fixture(scope="module")
def some() -> dict[str, Case]:
    return {n: c for n, c in switches().items() if n.startswith(("plain", "join active"))}


@pytest.fixture(scope="module")
def plain(some: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return outcome(tmp_path_factory.mktemp("plain"), some, 3, "none")


@pytest.mark.parametrize("watch", ["comm-hook", "collectives"])
def test_no_bit_changes(plain: list[dict[str, Any]], some: dict[str, Case], watch: str, tmp_path: Path) -> None:
    """The same cases that catch a sabotaged hook below; the whole product is in test_watched."""
    assert not any("error" in result for result in plain[0].values())
    assert differing(plain, outcome(tmp_path, some, 3, watch)) == []


@pytest.mark.parametrize("watch", ["divides", "multiplies", "draws", "keeps-a-gradient"])
def test_a_sabotaged_hook_is_caught(
    plain: list[dict[str, Any]], some: dict[str, Case], watch: str, tmp_path: Path
) -> None:
    assert differing(plain, outcome(tmp_path, some, 3, watch)) != []
