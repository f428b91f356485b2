"""What each command does: gathers what the rooms offer, and nothing of its own. Every import is inside its function."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpviz.language import _, current

if TYPE_CHECKING:
    from ddpviz.launch import Job, JobSpec
    from ddpviz.launch.demos import DemoScript

USAGE, UNREADABLE, INTERRUPTED = 2, 5, 130


def complain(line: str, code: int = USAGE) -> int:
    print(f"ddpviz: {line}", file=sys.stderr)
    return code


def demo(options: argparse.Namespace) -> int:
    from ddpviz.launch.demos import demo_script

    if options.list or not (options.name or _on_screen(options)):
        _list_demos()
        if not options.list:
            complain(_("start one with `ddpviz demo NAME`"))
        return 0
    if options.name:
        return _show(_demo_job(options, demo_script(options.name).path, _on_screen(options)), options)
    from ddpviz.dashboard import run_app
    from ddpviz.dashboard.state import Demo
    from ddpviz.lessons import lesson

    choices = []
    for group, demos in _grouped():
        for demo in demos:
            one = lesson(demo.name)
            other = partial(_demo_job, options, demo.path, False, one.other) if one is not None and one.other else None
            label = one.other_label if one is not None else ""
            start = partial(_demo_job, options, demo.path, True)
            choices.append(Demo(demo.name, demo.summary, start, demo.path, group, other, label))
    return run_app(
        None, None, demos=choices, motion=not options.no_motion, present=options.present, narrate=options.narration
    )


def _grouped() -> list[tuple[str, list[DemoScript]]]:
    """The demos as the lessons order them, under their headings; those that are no lesson at the end.

    What each one shows is the first line of its script, which is English; in another language its lesson's title.
    """
    from dataclasses import replace

    from ddpviz.launch.demos import demo_scripts
    from ddpviz.lessons import catalogue

    left = {demo.name: demo for demo in demo_scripts()}
    groups: dict[str, list[DemoScript]] = {}
    for one in catalogue():
        if one.name in left:
            demo = left.pop(one.name)
            groups.setdefault(one.group, []).append(demo if current() == "en" else replace(demo, summary=one.title))
    return [*groups.items(), *([(_("others"), list(left.values()))] if left else [])]


def _list_demos() -> None:
    groups = _grouped()
    width = max((len(demo.name) for _rest, demos in groups for demo in demos), default=0)
    for number, (group, demos) in enumerate(groups):
        print(("\n" if number else "") + group)
        for demo in demos:
            print(f"  {demo.name:<{width}}  {demo.summary}")


def run(options: argparse.Namespace) -> int:
    from ddpviz.launch import Job

    spec = _job_spec(options)
    return _show(Job(replace(spec, control=()) if options.control else spec), options)


def check(options: argparse.Namespace) -> int:
    from ddpviz.launch import Job, validate

    spec = _job_spec(options)
    validate(spec)
    from ddpviz.headless import check
    from ddpviz.headless.ci import unwritable

    if options.json not in (None, "-") and (problem := unwritable(Path(options.json))):
        return complain(problem)  # before a run folder is made for nothing
    return check(
        Job(spec), json=options.json, format=options.format, fail_on=options.fail_on, hang_after=options.hang_after
    )


def watch(options: argparse.Namespace) -> int:
    if options.also and "-" in (options.run, *options.also):
        return complain(_("a stream and folders do not go together"))
    if options.run == "-":
        return _watch_stream(options)
    from ddpviz.trace.rundir import find_run

    if options.also:
        return _watch_several([options.run, *options.also], options)
    run_dir = find_run(options.run or os.environ.get("DDPVIZ_RUN_DIR") or None)
    if not _terminal():
        return complain(
            _("watch needs a terminal; `ddpviz export {name} --to json` writes the facts", name=run_dir.name)
        )
    from ddpviz.dashboard import run_app

    return run_app(run_dir, None, motion=not options.no_motion, present=options.present, narrate=options.narration)


def runs(options: argparse.Namespace) -> int:
    import time

    from ddpviz.trace.rundir import list_runs, runs_base
    from ddpviz.trace.text import clean

    base = options.folder
    if base is not None and not base.is_dir():
        return complain(_("no such folder: {base}", base=base), UNREADABLE)
    found = list_runs(base)
    if not found:
        return complain(
            _("no runs in {folder}; start one with `ddpviz demo` or `ddpviz run`", folder=base or runs_base()), 0
        )
    rows = [("RUN", "STARTED", "STATUS", "RANKS", "COMMAND")]
    for run in found:
        started = time.localtime(run.started_wall_ns / 1e9) if run.started_wall_ns else None
        when = time.strftime("%Y-%m-%d %H:%M", started) if started else "-"
        words = run.info.get("command")
        command = clean(" ".join(str(word) for word in words)) if isinstance(words, list) else ""
        ranks = run.info.get("world_size")
        rows.append((run.id, when, run.status, str(ranks) if isinstance(ranks, int) else "-", run.problem or command))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join([*(f"{cell:<{width}}" for cell, width in zip(row[:4], widths, strict=True)), row[4]]).rstrip())
    return 0


def export(options: argparse.Namespace) -> int:
    from ddpviz.trace.rundir import find_run

    run_dir = find_run(options.run)
    from ddpviz.headless import export_run

    return export_run(run_dir, to=options.to, output=options.output)


def compare(options: argparse.Namespace) -> int:
    from ddpviz.trace.rundir import find_run

    first, second = find_run(options.first), find_run(options.second)
    if options.screen:
        if not _terminal():
            return complain(_("compare --screen needs a terminal; without --screen it prints the sentences"))
        from ddpviz.dashboard import run_app

        return run_app(None, None, beside=(first, second))
    from ddpviz.headless import compare_runs

    return compare_runs(first, second)


def cat(options: argparse.Namespace) -> int:
    from ddpviz.trace.rundir import find_run
    from ddpviz.trace.stream import send

    run_dir = find_run(options.run)
    if sys.stdout.isatty():
        return complain(_("cat writes a binary stream: pipe it into `ddpviz watch -`"))
    send(run_dir, sys.stdout.buffer, follow=options.follow)
    return 0


def quiz(options: argparse.Namespace) -> int:
    if not _terminal():
        return complain(_("quiz needs a terminal"))
    from ddpviz.dashboard.quiz import Quiz

    return Quiz().run() or 0


def serve(options: argparse.Namespace) -> int:
    import importlib.util

    if importlib.util.find_spec("textual_serve") is None:
        return complain(_("serve needs an extra: pip install 'ddpviz[serve]'"))
    what = options.what
    if what is not None and what.command is demo:
        if not what.name:
            return complain(_("serve demo: name one of the demos (`ddpviz demo --list`)"))
        from ddpviz.launch.demos import demo_script

        return _serve_job(_demo_job(what, demo_script(what.name).path), options)
    from ddpviz.trace.rundir import find_run

    named = what.run if what is not None else None
    if what is not None and what.also:
        return complain(_("it serves one run"))
    if named == "-":
        return complain(_("serve watches a run, not a stream"))
    return _serve(find_run(named or os.environ.get("DDPVIZ_RUN_DIR") or None), options)


def _serve_job(job: Job, options: argparse.Namespace) -> int:
    """Serve viewers of a job of our own: it runs once, however many tabs there are, and ends with the server."""
    try:
        job.start()
        return _serve(job.run_dir, options)
    finally:
        job.stop()
        job.finish()


def _serve(run_dir: Path, options: argparse.Namespace) -> int:
    from ddpviz.cli.serve import serve

    try:
        serve(run_dir, options.host, options.port)
    except (OSError, OverflowError) as error:
        return complain(
            _(
                "no server at {host}:{port}: {value}",
                host=options.host,
                port=options.port,
                value=getattr(error, "strerror", "") or error,
            )
        )
    return 0


def _watch_several(names: list[str], options: argparse.Namespace) -> int:
    import shutil
    import tempfile

    from ddpviz.trace.rundir import find_run, join_runs

    folders = [find_run(name) for name in names]
    if not _terminal():
        return complain(_("watch needs a terminal"))
    from ddpviz.dashboard import run_app

    together = Path(tempfile.mkdtemp(prefix="ddpviz-watch-"))
    try:
        join_runs(folders, together)
        return run_app(together, None, motion=not options.no_motion, present=options.present, narrate=options.narration)
    finally:
        shutil.rmtree(together, ignore_errors=True)


def _watch_stream(options: argparse.Namespace) -> int:
    import shutil
    import tempfile

    from ddpviz.trace.reader import RunError
    from ddpviz.trace.stream import Mirror

    if sys.stdin.isatty():
        return complain(_("`watch -` reads a stream: ssh NODE ddpviz cat RUN --follow | ddpviz watch -"))
    source = os.fdopen(os.dup(0), "rb")
    folder = Path(tempfile.mkdtemp(prefix="ddpviz-watch-"))
    try:
        mirror = Mirror(source, folder)
        mirror.start()
        mirror.begun.wait()
        if mirror.problem and not (folder / "run.json").exists():
            raise RunError(mirror.problem)
        try:  # the keyboard, whose place the stream took
            keyboard = os.open("/dev/tty", os.O_RDWR)
        except OSError:
            return complain(_("watch needs a terminal"))
        os.dup2(keyboard, 0)
        os.close(keyboard)
        if not _terminal():
            return complain(_("watch needs a terminal"))
        from ddpviz.dashboard import run_app

        return run_app(folder, None, motion=not options.no_motion, present=options.present, narrate=options.narration)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _terminal() -> bool:
    """Whether a full-screen app can run: Textual does not check, and would hang. In a browser it has its own driver."""
    if os.environ.get("TEXTUAL_DRIVER"):
        return True
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _on_screen(options: argparse.Namespace) -> bool:
    return not options.no_ui and _terminal()


def _show(job: Job, options: argparse.Namespace) -> int:
    if _on_screen(options):
        from ddpviz.dashboard import run_app

        return run_app(
            job.run_dir, job, motion=not options.no_motion, present=options.present, narrate=options.narration
        )
    from ddpviz.headless import run_plain

    return run_plain(job)


def _demo_job(options: argparse.Namespace, script: Path, orders: bool = False, further: tuple[str, ...] = ()) -> Job:
    """The job of a demo; with `orders` it takes live ones, for what its lesson exposes."""
    from ddpviz.launch import Job
    from ddpviz.lessons import lesson

    name = script.stem.replace("_", "-")
    one = lesson(name)
    names = tuple(knob.name for knob in one.knobs if knob.live) if one is not None else ()
    spec = _spec(options, script=script, args=(*options.job, *further), budget=None, title=name, lesson=name)
    return Job(replace(spec, control=names if orders else None))


def _job_spec(options: argparse.Namespace) -> JobSpec:
    job = options.job
    if not job:
        options.parser.error(_("name a SCRIPT.py, or a command behind --"))
    if job[0] == "--":
        if not job[1:]:
            options.parser.error(_("the command behind -- is missing"))
        return _spec(options, command=tuple(job[1:]), budget=options.budget)
    return _spec(options, script=Path(job[0]), args=tuple(job[1:]), budget=options.budget)


def _kept_size() -> str:
    """The limit in the settings, if there is one."""
    from ddpviz.dashboard.settings import Settings

    return Settings.load().max_size


def _spec(options: argparse.Namespace, **fields: Any) -> JobSpec:
    from ddpviz.launch import JobSpec
    from ddpviz.launch.environment import MARK

    inside = MARK in os.environ  # in a job of ddpviz the variable names that job's run, not where to put another
    elsewhere = None if inside else os.environ.get("DDPVIZ_RUN_DIR")
    return JobSpec(
        nproc=options.nproc,
        backend=options.backend,
        cpu=getattr(options, "cpu", False),
        run_dir=options.run_dir or (Path(elsewhere) if elsewhere else None),
        max_size=options.max_size or os.environ.get("DDPVIZ_MAX_SIZE") or _kept_size(),
        **fields,
    )
