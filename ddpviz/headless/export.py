"""`ddpviz export`: a recorded run as a file or on stdout. The formats themselves are in `ddpviz.export`."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ddpviz.export import page, perfetto, svg, tidy
from ddpviz.export.load import load
from ddpviz.export.report import in_parts
from ddpviz.findings import find, find_in_english
from ddpviz.headless.console import Console, complain, reason
from ddpviz.language import _
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import RunError, read_info

FORMATS = ("json", "perfetto", "csv", "parquet", "html", "svg", "tensorboard", "wandb")
FINE, USAGE, UNREADABLE = 0, 2, 5


def export_run(run_dir: Path, *, to: str, output: str | None = None) -> int:
    """Write a run in one of `FORMATS` to `output` (a file; None or "-": stdout). 0; 2 not writable; 5 not readable.

    For "csv" and "parquet" a folder (or a name that ends in a slash) takes passes, buckets and steps; a file or stdout
    takes the passes alone. "tensorboard" and "wandb" write into a folder.
    """
    if problem := _lacking(to, output):
        complain(problem)
        return USAGE
    try:
        tl = load(run_dir)
    except RunError as error:
        complain(str(error))
        return UNREADABLE
    if output is not None and to in _FOLDERS:
        return _folder(partial(_FOLDERS[to], tl, run_dir), Path(output))
    into_folder = output is not None and (output.endswith(("/", os.sep)) or Path(output).is_dir())
    if output is not None and to in _TABLE and into_folder:
        return _folder(partial(_tables, tl, to), Path(output))
    if to == "parquet":
        return _parquet(tl, output)
    parts = _RENDER[to](tl)
    if output in (None, "-"):
        out = Console(sys.stdout)
        out.data(parts)
        return FINE if out.failed is None or isinstance(out.failed, BrokenPipeError) else USAGE
    return _write(Path(str(output)), parts)


_RENDER: dict[str, Callable[[Timeline], Iterable[bytes]]] = {
    "json": lambda tl: in_parts(tl, find_in_english(tl)),
    "perfetto": perfetto.in_parts,
    "csv": lambda tl: tidy.in_parts(tl, "passes"),
    "html": lambda tl: [page.to_html(tl, find(tl)).encode()],
    "svg": lambda tl: [svg.to_svg(tl).encode()],
}


def _lacking(to: str, output: str | None) -> str:
    """Why this export cannot be written: an extra that is not installed, no folder to write into. Empty if it can."""
    if to in _EXTRAS and importlib.util.find_spec(_EXTRAS[to]) is None:
        return _("--to {to} needs an extra: pip install 'ddpviz[{to}]'", to=to)
    if to in _FOLDERS and output in (None, "-"):
        return _("--to {to} writes a folder: name it with -o", to=to)
    return ""


def _folder(write: Callable[[Path], None], folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        complain(_("no folder can be made at {folder}: {reason}", folder=folder, reason=reason(error)))
        return USAGE
    try:
        write(folder)
    except OSError as error:
        complain(_("{value} cannot be written: {reason}", value=error.filename or folder, reason=reason(error)))
        return USAGE
    return FINE


def _tables(tl: Timeline, to: str, folder: Path) -> None:
    for name in tidy.tables(tl):
        _TABLE[to](tl, name, folder / f"{name}.{to}")


def _csv_table(tl: Timeline, name: str, path: Path) -> None:
    with open(path, "w", encoding="utf-8", newline="") as stream:
        tidy.write(stream, *tidy.tables(tl)[name])


def _parquet_table(tl: Timeline, name: str, path: Path) -> None:
    from ddpviz.export import parquet

    parquet.write(tl, name, path)


def _parquet(tl: Timeline, output: str | None) -> int:
    """The table of passes, to a file or stdout."""
    from ddpviz.export import parquet

    try:
        if output in (None, "-"):
            stream = io.BytesIO()  # Parquet wants to know where it is, which a pipe does not say
            parquet.write(tl, "passes", stream)
            sys.stdout.buffer.write(stream.getbuffer())
            sys.stdout.flush()
        else:
            parquet.write(tl, "passes", Path(str(output)))
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(_("{value} cannot be written: {reason}", value=output or "the output", reason=reason(error)))
        return USAGE
    return FINE


def _tensorboard(tl: Timeline, run_dir: Path, folder: Path) -> None:
    from ddpviz.export import tensorboard

    tensorboard.write(tl, find_in_english(tl), folder, started_s=_started(run_dir))


def _wandb(tl: Timeline, run_dir: Path, folder: Path) -> None:
    from ddpviz.export import wandb_offline

    wandb_offline.write(tl, find_in_english(tl), folder, started_s=_started(run_dir))


def _started(run_dir: Path) -> float:
    """Wall clock at the run's start, in seconds; 0 if run.json does not say."""
    try:
        started = read_info(run_dir).get("started_wall_ns")
    except (OSError, RunError):
        return 0.0
    return started / 1e9 if isinstance(started, int) else 0.0


_TABLE: dict[str, Callable[[Timeline, str, Path], None]] = {"csv": _csv_table, "parquet": _parquet_table}
_FOLDERS: dict[str, Callable[[Timeline, Path, Path], None]] = {"tensorboard": _tensorboard, "wandb": _wandb}
_EXTRAS = {"parquet": "pyarrow", "tensorboard": "tensorboard", "wandb": "wandb"}  # what each needs


def _write(path: Path, parts: Iterable[bytes]) -> int:
    try:
        with path.open("wb") as stream:
            stream.writelines(parts)
    except OSError as error:
        complain(_("{path} cannot be written: {reason}", path=path, reason=reason(error)))
        return USAGE
    return FINE
