"""A run as an offline run of Weights & Biases: nothing is sent; `wandb sync` does that, if it is wanted.

Needs the extra `ddpviz[wandb]`. One row a micro-step with the ranks side by side, findings in the summary.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddpviz.export import scalars
from ddpviz.findings.model import Finding
from ddpviz.timeline import model as m


def write(tl: m.Timeline, findings: Iterable[Finding], folder: Path, *, started_s: float) -> None:
    """An `offline-run-...` under `folder/wandb`, of a run that started at `started_s` (wall clock). Raises OSError."""
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")  # the latter goes to the internet
    import wandb

    settings = wandb.Settings(
        mode="offline", console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True
    )
    config = {"command": list(tl.run.command), "world_size": tl.run.world_size, "torch": tl.run.torch}
    name = tl.run.title or tl.run.id
    with wandb.init(project="ddpviz", name=name, config=config, dir=str(folder), settings=settings) as run:
        for index, (at_ns, values) in _rows(tl).items():
            run.log({**values, "_timestamp": started_s + at_ns / 1e9}, step=index)
        run.summary["findings"] = [f"{f.severity.word} {f.rule}: {f.message}" for f in findings]


def _rows(tl: m.Timeline) -> dict[int, tuple[int, dict[str, Any]]]:
    """By index of the micro-step, the time at which the last rank ended it and every rank's numbers."""
    rows: dict[int, tuple[int, dict[str, Any]]] = {}
    for rank in sorted(tl.ranks):
        for index, at_ns, values in scalars.of_rank(tl, rank):
            latest, known = rows.setdefault(index, (at_ns, {}))
            known.update({f"rank-{rank}/{tag}": value for tag, value in values.items()})
            rows[index] = max(latest, at_ns), known
    return dict(sorted(rows.items()))
