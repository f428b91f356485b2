"""Makes the README's pictures from real runs: starts the demos, opens the app on them, saves its screen as SVG.

python tests/make_pictures.py [FOLDER]      (default: tests/pictures)
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ddpviz.dashboard.app import Dashboard
from ddpviz.dashboard.levels import Phase
from ddpviz.dashboard.main import Main
from ddpviz.dashboard.overview import Overview
from ddpviz.dashboard.settings import Settings
from ddpviz.launch import Job, JobSpec

DEMOS = Path(__file__).parent.parent / "demos"
PATIENCE = 120.0  # seconds


def main_of(app: Dashboard) -> Main:
    return next(screen for screen in app.screen_stack if isinstance(screen, Main))


async def picture(name: str, ready: Callable[[Dashboard], bool], size: tuple[int, int], keys: tuple[str, ...]) -> str:
    """The screen of a demo, as SVG, as soon as it is `ready` and `keys` were pressed."""
    with tempfile.TemporaryDirectory() as folder:
        script = DEMOS / f"{name.replace('-', '_')}.py"
        job = Job(JobSpec(script=script, nproc=2, run_dir=Path(folder) / "run", title=name, budget=None))
        app = Dashboard(job.run_dir, job, motion=False, settings=Settings(theme="ddpviz-dark"))
        app.keep = lambda **_: None  # type: ignore[method-assign]  # the user's own settings stay as they are
        async with app.run_test(size=size) as pilot:
            end = time.monotonic() + PATIENCE
            while not ready(app):
                if time.monotonic() > end:
                    raise TimeoutError(f"{name} was not ready in {PATIENCE:.0f} s")
                await pilot.pause(0.01)
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.5)
            svg = app.export_screenshot(title=f"ddpviz demo {name}")
        app.close_job()
        return svg


def averaged(app: Dashboard) -> bool:
    """Live, some windows in, at a pass that was just all-reduced and is still in the levels."""
    main = main_of(app)
    if not main.cursor.live or main.cursor.index < 39:
        return False
    overview = main._views["overview"]
    assert isinstance(overview, Overview)
    now = overview.levels.now
    if now is None or now.index != main.cursor.index or not now.done == now.buckets > 0:
        return False
    overview._norms_at = 0.0  # the chart, which is drawn a few times a second, is to be of the same moment
    overview._norms_again()
    return all(level.value and level.phase is Phase.SYNCED for level in now.levels)


def over(app: Dashboard) -> bool:
    """The job has ended, and all of it has been read and judged."""
    snap = main_of(app)._snap
    return snap is not None and snap.exit_code is not None and snap.complete


def caught(app: Dashboard) -> bool:
    snap = main_of(app)._snap
    return over(app) and snap is not None and bool(snap.findings)


PICTURES: dict[str, tuple[str, Callable[[Dashboard], bool], tuple[int, int], tuple[str, ...]]] = {
    "overview": ("accumulate-long", averaged, (120, 36), ()),
    "mistake": ("unsynced-step", caught, (100, 27), ("escape",)),
    "backward": ("accumulate", over, (120, 20), ("3",)),
    "source": ("accumulate", over, (132, 36), ("8", *["left"] * 4)),
    "present": ("accumulate", over, (100, 28), ("w", "left", "left")),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name, (demo, ready, size, keys) in PICTURES.items():
        svg = asyncio.run(picture(demo, ready, size, keys))
        # The fonts come from the reader's own machine: nothing is fetched from elsewhere.
        svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
        (folder / f"{name}.svg").write_text(svg, "utf-8")
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
