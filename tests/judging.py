"""What tests of the findings share: a simulated job, and which rules fire on it."""

from __future__ import annotations

from typing import Any

from simcluster import Cluster

from ddpviz.findings import find
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.model import Timeline


def rules(tl: Timeline, *, least: Severity = Severity.WARNING) -> set[str]:
    found = find(tl)
    assert not [f for f in found if "could not be judged" in f.message]
    return {f.rule for f in found if f.severity >= least}


def one(tl: Timeline, rule: str) -> Finding:
    found = [f for f in find(tl) if f.rule == rule]
    assert len(found) == 1, [f.rule for f in find(tl)]
    return found[0]


def run(train: Any, ranks: int = 2, **how: Any) -> Timeline:
    return Cluster(ranks, **how).run(train).timeline()
