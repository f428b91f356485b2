"""`ddpviz export`: a recorded run as a file or on stdout. The formats themselves are in `ddpviz.export`."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ddpviz.export import page, perfetto, svg, tidy
from ddpviz.export.load import load
from ddpviz.export.report import to_json
from ddpviz.findings import find
from ddpviz.headless.console import Console, complain, reason
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import RunError

FORMATS = ("json", "perfetto", "csv", "html", "svg")
FINE, USAGE, UNREADABLE = 0, 2, 5


def export_run(run_dir: Path, *, to: str, output: str | None = None) -> int:
    """Write a run in one of `FORMATS` to `output` (a file; None or "-": stdout). 0; 2 not writable; 5 not readable.

    For "csv" a folder (or a name that ends in a slash) takes passes.csv, buckets.csv and steps.csv; a file or stdout
    takes the passes alone.
    """
    try:
        tl = load(run_dir)
    except RunError as error:
        complain(str(error))
        return UNREADABLE
    if to == "csv" and output is not None and (output.endswith(("/", os.sep)) or Path(output).is_dir()):
        return _tables(tl, Path(output))
    text = _RENDER[to](tl)
    if output in (None, "-"):
        out = Console(sys.stdout)
        out.data(text)
        return FINE if out.failed is None or isinstance(out.failed, BrokenPipeError) else USAGE
    return _write(Path(str(output)), text)


def _csv(tl: Timeline) -> str:
    stream = io.StringIO()
    header, rows = tidy.tables(tl)["passes"]
    tidy.write(stream, header, rows)
    return stream.getvalue()


_RENDER: dict[str, Callable[[Timeline], str]] = {
    "json": lambda tl: to_json(tl, find(tl)).decode(),
    "perfetto": lambda tl: perfetto.to_perfetto(tl).decode(),
    "csv": _csv,
    "html": lambda tl: page.to_html(tl, find(tl)),
    "svg": svg.to_svg,
}


def _tables(tl: Timeline, folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        complain(f"no folder can be made at {folder}: {reason(error)}")
        return USAGE
    for name, (header, rows) in tidy.tables(tl).items():
        try:
            with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as stream:
                tidy.write(stream, header, rows)
        except OSError as error:
            complain(f"{folder / name}.csv cannot be written: {reason(error)}")
            return USAGE
    return FINE


def _write(path: Path, text: str) -> int:
    try:
        path.write_bytes(text.encode("utf-8"))
    except OSError as error:
        complain(f"{path} cannot be written: {reason(error)}")
        return USAGE
    return FINE
