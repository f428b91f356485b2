"""`ddpviz run` without a terminal: the facts of the dashboard as plain lines, as they happen.

The job's own output goes to stdout, each line with its rank; ddpviz's narration goes to stderr.
"""

from __future__ import annotations

import sys
import time

from ddpviz.findings import find
from ddpviz.findings.model import Finding, Severity
from ddpviz.headless import text
from ddpviz.headless.console import Console
from ddpviz.headless.follow import Ended, Follower, ending_signals
from ddpviz.headless.narrate import Narrator
from ddpviz.headless.outcome import Outcome, worst_first
from ddpviz.language import _
from ddpviz.launch import Job
from ddpviz.lessons import lesson
from ddpviz.trace.text import clean

_POLL = 0.1  # seconds between two looks at the trace and the logs
_RULES = 1.0  # seconds between two looks at the rules


def run_plain(job: Job) -> int:
    """Run the job to its end and return its own exit code; 128 + n if signal n ended ddpviz (130 on Ctrl-C).

    No process of the job is left when this returns or raises.
    """
    with ending_signals():
        plain: _Plain | None = None
        signum: int | None = None
        try:
            job.start()
            plain = _Plain(Follower(job.run_dir))
            while job.poll() is None:
                plain.tell()
                time.sleep(_POLL)
        except Ended as ended:
            signum = ended.signum
            job.stop()
            if plain is not None:  # it may have been in the middle of reading
                plain.follower.start_again()
        except BaseException:
            job.stop()
            raise
        code = job.finish()
        if signum is not None:
            code = 128 + signum
        (plain or _Plain(Follower(job.run_dir))).close(signum)
    return code


class _Plain:
    """Prints one job: what is new at each `tell`, the rest and a summary at `close`."""

    def __init__(self, follower: Follower) -> None:
        self.out, self.err = Console(sys.stdout), Console(sys.stderr)
        self.follower = follower
        self.narrator = Narrator()
        self.started = False
        self.ruled = 0.0
        self.told: dict[tuple[str, int | None, str, int], Finding] = {}

    def tell(self, *, final: bool = False) -> None:
        changed = self.follower.poll()
        tl = self.follower.timeline
        if not self.started:
            self.started = True
            self.err.line(text.header(tl, "run"))
            self.say(_("recording to {run_dir}", run_dir=self.follower.reader.run_dir))
            self.look()
        for key, line in self.follower.logs.lines(final=final):
            if key != "launcher":  # torchrun's own words say less than what is told here
                self.out.line(f"[rank {key}] {line}" if key.isdigit() else line)
        if not changed and not final:
            return
        now = time.monotonic()
        for line in self.narrator.lines(tl, now, final=final):
            self.say(line)
        if now - self.ruled >= _RULES and not final:
            self.ruled = now
            self.findings([f for f in find(tl) if f.severity is not Severity.INFO])

    def look(self) -> None:
        """A lesson says first what to look at."""
        one = lesson(self.follower.timeline.run.lesson)
        if one is not None:
            for line in ["", self.err.paint(one.title, "bold"), *(f"  {sentence}" for sentence in one.look), ""]:
                self.err.line(line)

    def findings(self, found: list[Finding]) -> None:
        """Tell the findings that were not told yet, in full."""
        for finding in found:
            key = (finding.rule, finding.module, finding.file, finding.line)
            if key not in self.told:
                self.told[key] = finding
                for line in text.finding_lines(finding, self.err):
                    self.err.line(line)

    def close(self, signum: int | None) -> None:
        """What is left, and a closing summary."""
        self.tell(final=True)
        tl, reader = self.follower.timeline, self.follower.reader
        found = worst_first(find(tl))
        self.findings([f for f in found if f.severity is not Severity.INFO])
        outcome = Outcome(tl, found, reader.run_dir, self.follower.logs, signum)
        sections = [
            *text.failures(outcome, self.err, "run"),
            [f"ddpviz: {clean(note)}" for note in dict.fromkeys([*tl.run.notes, *reader.problems])],
            ["  " + line for finding in found for line in text.brief(finding, self.err)],
            list(text.summary(tl)),
            list(text.seen(tl)),
        ]
        for section in sections:
            for line in ["", *section] if section else []:
                self.err.line(line)
        self.say(text.ending(outcome, self.err))

    def say(self, line: str) -> None:
        """One line of ddpviz's own."""
        self.err.line(f"ddpviz: {line}")
