"""What really happened in a job, from the files of the oracle's ranks: sync of passes, norms, equality of replicas."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.jobs import run_ranks

RANK = Path(__file__).parent / "rank.py"


@dataclass
class Pass:
    """One backward of one module. `sync`: local, synced, partial or mixed; norms by rank."""

    sync: str
    local_norms: list[float]
    norms: list[float]
    grads_equal: bool


@dataclass
class Truth:
    """`passes` by module in the order of construction; `replicas[k]`: module -> whether equal after the k-th step."""

    passes: dict[int, list[Pass]] = field(default_factory=dict)
    replicas: list[dict[int, bool]] = field(default_factory=list)


def run(script: Path, ranks: int, folder: Path, args: Sequence[str] = (), limit: float = 120) -> Truth:
    """Run a script under the oracle and compare its ranks."""
    for _ in range(3):
        done = run_ranks(RANK, ranks, [str(folder), str(script), *args], limit=limit)
        if "terminate called without an active exception" not in done.output:  # gloo, after the last line: not ours
            break
    assert done.code == 0, done.output
    return compare([json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)])


def compare(logs: list[dict[str, Any]]) -> Truth:
    """The ranks must have run the same passes and steps: the oracle is for jobs in step."""
    truth = Truth()
    assert len({len(log["passes"]) for log in logs}) == 1
    assert len({len(log["steps"]) for log in logs}) == 1
    truth.passes = {number: [] for number in range(logs[0]["modules"])}
    for looks in zip(*(log["passes"] for log in logs), strict=True):
        for module in sorted({int(m) for look in looks for m in look["modules"]}):
            mine = [look["modules"][str(module)] for look in looks]
            counts = [look["collectives"] for look in looks]
            truth.passes[module].append(_judge(mine, counts))
    for stepped in zip(*(log["steps"] for log in logs), strict=True):
        numbers = {int(m) for s in stepped for m in s["parameters"]}
        truth.replicas.append({m: _equal([s["parameters"][str(m)] for s in stepped]) for m in numbers})
    return truth


def _judge(looks: list[dict[str, Any]], collectives: list[int]) -> Pass:
    """A gradient was averaged where collectives ran on every rank and the results are equal bit for bit."""
    names = sorted({n for look in looks for n in look["after"]})
    averaged = [all(collectives) and len({look["after"].get(name) for look in looks}) == 1 for name in names]
    if any(collectives) and not all(collectives):
        sync = "mixed"
    elif all(averaged):
        sync = "synced"
    else:
        sync = "partial" if any(averaged) else "local"
    return Pass(
        sync,
        [look["local_norm"] for look in looks],
        [look["norm"] for look in looks],
        _equal([look["after"] for look in looks]),
    )


def _equal(digests: list[dict[str, str]]) -> bool:
    return all(d == digests[0] for d in digests)


def differences(truth: Truth, report: dict[str, Any]) -> list[str]:
    """Where a report of ddpviz says something else: sync of each pass, norms to 1e-6, replicas after each step."""
    wrong = []
    if len(report["modules"]) != len(truth.passes):
        wrong.append(f"{len(report['modules'])} modules, {len(truth.passes)} ran")
    for number, passes in truth.passes.items():
        module = report["modules"][number]
        if len(module["backwards"]) != len(passes):
            wrong.append(f"module {number}: {len(module['backwards'])} passes, {len(passes)} ran")
        for index, (told, real) in enumerate(zip(module["backwards"], passes, strict=False)):
            place = f"module {number} pass {index}"
            if told["sync"] != real.sync:
                wrong.append(f"{place}: {told['sync']}, really {real.sync}")
            for row in told["ranks"]:
                for field_name, values in (("local_norm", real.local_norms), ("norm", real.norms)):
                    value, real_value = row[field_name], values[row["rank"]]
                    if not _close(value, real_value):
                        wrong.append(f"{place} rank {row['rank']}: {field_name} {value}, really {real_value}")
    told_steps = report["steps"]
    if len(told_steps) != len(truth.replicas):
        wrong.append(f"{len(told_steps)} steps, {len(truth.replicas)} ran")
    for index, (told, equal) in enumerate(zip(told_steps, truth.replicas, strict=False)):
        real = "equal" if all(equal.values()) else "diverged"
        if told["replicas"] != real:
            wrong.append(f"step {index}: replicas {told['replicas']}, really {real}")
    return wrong


def _close(told: object, real: float) -> bool:
    """Equal to 1e-6; NaN and Inf are words in a report."""
    if not math.isfinite(real):
        return told == ("nan" if math.isnan(real) else "inf")
    return isinstance(told, (int, float)) and math.isclose(told, real, rel_tol=1e-6)
