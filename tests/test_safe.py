"""A trace from a stranger: opening it runs nothing, asks nobody, writes nothing beside it; and it stays private."""

from __future__ import annotations

import ast
import io
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import synth
from recorded import FOLDER

from ddpviz.trace import stream
from ddpviz.trace.thin import thin

ROOT = Path(__file__).resolve().parents[1]
WATCHED = """
import sys
run = sys.argv[1]
FORBIDDEN = {"socket.__new__", "socket.bind", "socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system",
             "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pickle.find_class",
             "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate"}
def hook(event, args):
    if event in FORBIDDEN:
        raise SystemExit(f"forbidden: {event} {args}")
    if event == "open" and str(args[0]).startswith(run) and (args[2] or 0) & 3:
        raise SystemExit(f"opened for writing: {args}")
from ddpviz.export.load import load
from ddpviz.export.compare import compare, figures
from ddpviz.export.report import in_parts
from ddpviz.export import page, perfetto, svg, tidy
from ddpviz.findings import find
from pathlib import Path
sys.addaudithook(hook)
tl = load(Path(run))
found = find(tl)
print(len(b"".join(in_parts(tl, found))) > 500, len(page.to_html(tl, found)) > 500, len(svg.to_svg(tl)) > 500,
      len(perfetto.to_perfetto(tl)) > 50, all(list(rows) is not None for _, rows in tidy.tables(tl).values()),
      len(list(compare(figures(tl, found, "a"), figures(tl, found, "b")))) > 0)
"""


@pytest.mark.parametrize("name", ["unsynced-step", "uneven", "thinned"])
def test_opening_a_run_runs_nothing_and_writes_nothing(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FOLDER / name, run)
    for path in (*run.rglob("*"), run):  # a folder that may not be written to
        path.chmod(0o500 if path.is_dir() else 0o400)
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(run)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", ["True"] * 6)
    for path in (run, *run.rglob("*")):
        path.chmod(0o700)


def test_nothing_unpickles_or_evaluates() -> None:
    for path in (ROOT / "ddpviz").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & set(names), path
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            assert called not in ("eval", "exec"), path


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_what_a_stream_or_thinning_leaves_is_private_too(tmp_path: Path, umask: int) -> None:
    import os

    run, out = synth.write_run(tmp_path / "a"), io.BytesIO()
    stream.send(run, out)
    old = os.umask(umask)
    try:
        copy = tmp_path / "copy"
        copy.mkdir(0o700)
        copy.chmod(0o700)
        mirror = stream.Mirror(io.BytesIO(out.getvalue()), copy)
        mirror.start()
        assert mirror.ended.wait(20)
        for path in (run / "trace").iterdir():
            for _ in thin(path):
                pass
    finally:
        os.umask(old)
    for path in (*copy.rglob("*"), *(run / "trace").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
