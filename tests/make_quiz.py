"""Makes the quiz's recordings anew from the lessons' scripts: `python tests/make_quiz.py FOLDER [NAME ...]`.

FOLDER is where the scripts are copied to, since their paths stand in the recordings. Only what the quiz reads is kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ddpviz.trace.format import BLOCK_HEADER, FILE_HEADER, HEADER_BYTES, block

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "ddpviz" / "quiz" / "runs"
LESSONS = {
    "last-one-syncs": [],
    "accumulate": [],
    "unsynced-step": [],
    "first-syncs": [],
    "forward-outside": [],
    "short-window": [],
    "same-data": [],
}


def neutral(path: Path) -> None:
    """Where Python and this checkout are, which stands in the ranks' stacks, becomes a neutral name as long as it."""
    data, out = path.read_bytes(), bytearray()
    out += data[: FILE_HEADER.size]
    at = FILE_HEADER.size
    while at + HEADER_BYTES <= len(data):
        kind, _zero, width, count, size, _crc = BLOCK_HEADER.unpack_from(data, at)
        payload = data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        for place in (sys.prefix.encode(), str(HERE.parent).encode()):
            payload = payload.replace(place, b"/home/user/venv".ljust(len(place), b"_")[: len(place)])
        out += block(kind, width, count, payload)
        at += HEADER_BYTES + size
    path.write_bytes(out)


def make(name: str, scripts: Path) -> None:
    script = scripts / f"{name.replace('-', '_')}.py"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "ddpviz", "run", "--no-ui", "--budget", "full", "--run-dir", str(run)]
        subprocess.run([*command, str(script), *LESSONS[name]], cwd=scripts, check=True, stdout=subprocess.DEVNULL)
        kept = RUNS / name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        shutil.copy(run / "run.json", kept)
        shutil.copytree(run / "trace", kept / "trace")
        for path in (kept / "trace").iterdir():
            neutral(path)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for path in (HERE.parent / "demos").glob("*.py"):
        shutil.copy(path, folder)
    for wanted in sys.argv[2:] or LESSONS:
        make(wanted, folder)
        print(wanted)
