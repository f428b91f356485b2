"""The arguments of every command and what their help says. Parses; does nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ddpviz.cli import commands
from ddpviz.cli.commands import INTERRUPTED, UNREADABLE, USAGE
from ddpviz.cli.parser_words import adopt
from ddpviz.language import LANGUAGES, N_, _
from ddpviz.version import __version__

__all__ = ["INTERRUPTED", "UNREADABLE", "USAGE", "parse"]

_ABOUT = N_("""\
See what PyTorch's DistributedDataParallel really does with gradients: which backward passes stay local (no_sync) and
which are all-reduced, when each bucket fires, when the optimizer steps, and whether the replicas stay equal. Measured
inside a real multi-rank job, shown live in the terminal, or checked in CI.""")

_GUIDE = N_("""\
examples:
  ddpviz demo                          pick a demo and watch it
  ddpviz run train.py --lr 0.1         watch your own script on 2 ranks (options of ddpviz go before the script)
  ddpviz run --cpu train.py            ... that is written for CUDA and NCCL, on this machine's CPU
  ddpviz run -- torchrun --nproc-per-node 4 train.py
  ddpviz check train.py                fail in CI when a step uses gradients that were never averaged
  ddpviz watch                         open the latest run again
  ssh NODE ddpviz cat RUN --follow | ddpviz watch -

exit codes:
  check     0 all well; 1 findings; 2 usage; 3 the job failed or hung; 4 no DDP module was seen
  run demo  the job's own; 130 after Ctrl-C; 2 if it cannot be started as asked
  others    0; 2 usage; 5 a run that cannot be read

environment:
  DDPVIZ_RUN_DIR   folder of the run that is started, attached to or watched
  DDPVIZ_OBSERVE   collectives (the default, where PyTorch allows it) or comm-hook
  DDPVIZ_BUDGET    for attach() without ddpviz run: percent of the step time for norms, or full
  DDPVIZ_MAX_SIZE  of a run's traces, such as 500M; beyond it old detail is thinned (default: 4G)
  DDPVIZ_DEBUG     1: a fault of ddpviz's own shows its traceback
  NO_COLOR, TERM   no colour; no full screen where TERM is dumb

files (on Linux; elsewhere where the system keeps such things):
  ~/.local/state/ddpviz/runs/          one folder a run, for its owner alone: run.json, trace/, logs/
  ~/.config/ddpviz/dashboard.json      settings: theme, speed, motion, language, keys, max_size

`ddpviz COMMAND --help` says more. In a script: ddpviz.attach(ddp_model).""")

_JOB = N_("""\
With SCRIPT.py, ddpviz starts the ranks itself, under torchrun, and keeps each rank's output apart. Behind -- goes any
command that starts ranks (torchrun, accelerate launch, srun, python with mp.spawn). The script stays as it is: the
probe is injected through the environment, and changes nothing of what the job computes.""")

_RUN = N_("Run a job and watch it in the dashboard (in plain lines where there is no terminal).")
_CHECK = N_("Run a job, say what is wrong with it and where, and end with an exit code that a CI understands.")
_DEMO = N_("""\
Start a demo (a small real DDP job) and watch it. Without a NAME a picker opens that says what each one shows.""")

_WATCH = N_("""\
Open a run in the dashboard and leave it alone: quitting does not end the job. RUN is an id (`ddpviz list` names them),
a part of one that fits no other, or a folder; the latest run if none is named. Several are the hosts of one job, each
with a folder of its own. - reads a stream from a pipe:

  ssh NODE ddpviz cat RUN --follow | ddpviz watch -""")

_EXPORT = N_("""\
Write a run as a file. json is the report that `ddpviz check --json` writes; perfetto opens in ui.perfetto.dev; csv is
the table of passes, or, into a folder, the tables of passes, buckets and steps, and parquet is the same; html is one
page that needs nothing else; svg is the Sync timeline; tensorboard and wandb write a folder of event files, and a run
of Weights & Biases that nothing has sent anywhere (`wandb sync` does). The extras ddpviz[parquet], ddpviz[tensorboard]
and ddpviz[wandb] bring what these three need.

  ddpviz export RUN --to json | jq .findings
  ddpviz export RUN --to parquet -o tables/
  ddpviz export RUN --to tensorboard -o logs/ && tensorboard --logdir logs""")

_QUIZ = N_("Answer questions on recordings of the lessons, by pointing at their timelines; each is explained after.")

_COMPARE = N_("Say in sentences how the second run differs from the first.")

_CAT = N_("""\
Write a run to stdout as one stream, its logs included. ssh is the access control; ddpviz opens no port of its own.

  ssh NODE ddpviz cat RUN --follow | ddpviz watch -""")

_SERVE = N_("""\
Serve the dashboard to browsers, for a projector or a class: every tab is a viewer of one run, and sees it live. `serve
watch RUN` serves a run (the latest if none is named), `serve demo NAME` starts a demo once and serves it. On this
machine alone unless --host says otherwise: then anybody who reaches the address sees the run. Needs the extra: pip
install 'ddpviz[serve]'.""")

_RUN_CODES = N_("exit code: the job's own; 130 after Ctrl-C or quitting; 2 if it cannot be started as asked")
_CHECK_CODES = N_("""\
exit codes, the first that applies:
  2  usage
  3  the job failed or hung
  1  findings at or above --fail-on
  4  no DDP module was seen
  0  all well""")
_RUN_NAME = N_("an id (`ddpviz list`), a part of one that fits no other, or a folder")
_READ_CODES = N_("exit codes: 0; 2 usage; 5 a run that cannot be read")


_LANG = N_("the language to speak (default: the settings', else the locale's, else English)")


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with text kept as written and errors of one line."""

    def __init__(self, **options: Any) -> None:
        def wide(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=118)

        super().__init__(allow_abbrev=False, formatter_class=wide, **options)
        self.takes_value: set[str] = set()

    def option(self, *names: str, **details: Any) -> None:
        action = self.add_argument(*names, **details)
        if action.nargs is None:
            self.takes_value.update(action.option_strings)

    def error(self, message: str) -> NoReturn:
        print(_("{prog}: {message} (see {prog} --help)", prog=self.prog, message=message), file=sys.stderr)
        sys.exit(USAGE)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options of a command, with `command` (what to call with them), `parser`, and for jobs `job`. Exits on misuse.

    In `run` and `check` everything from the script (or --) on belongs to the job, whatever it looks like; in `demo`
    what follows -- does.
    """
    adopt()
    parser, verbs = _parsers()
    lang = ""
    while len(arguments) > 1 and arguments[0].partition("=")[0] == "--lang" and (verbs.keys() & arguments):
        lang = arguments[0].partition("=")[2] or arguments[1]
        if lang not in LANGUAGES:
            parser.error(_("there is no language {name}; there are {names}", name=lang, names=", ".join(LANGUAGES)))
        arguments = arguments[1 if "=" in arguments[0] else 2 :]
    verb = verbs.get(arguments[0]) if arguments else None
    if verb is None:
        if not arguments or (
            not verbs.keys() & arguments and all(word.startswith("--lang") or word in LANGUAGES for word in arguments)
        ):
            parser.print_help()
            sys.exit(USAGE)
        return parser.parse_args(arguments)  # --help, --version, or an error
    own, job = arguments[1:], []
    if arguments[0] == "demo" and "--" in own:
        at = own.index("--")
        own, job = own[:at], own[at + 1 :]
    elif arguments[0] in ("run", "check", "serve"):
        own, job = _split(own, verb.takes_value)
    options = verb.parse_args(own)
    options.job = job
    options.lang = options.lang or lang
    if arguments[0] == "serve":
        if job and job[0] not in ("demo", "watch"):
            verb.error(_("it serves demo or watch, not {job}", job=job[0]))
        options.what = parse(job) if job else None
    return options


def _split(arguments: list[str], takes_value: set[str]) -> tuple[list[str], list[str]]:
    """ddpviz's own arguments, and those from the first that is neither an option nor an option's value."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] not in ("-", "--"):
        at += 2 if arguments[at] in takes_value else 1
    return arguments[:at], arguments[at:]


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="ddpviz", description=_(_ABOUT), epilog=_(_GUIDE))
    parser.add_argument("--version", action="version", version=f"ddpviz {__version__}")
    parser.add_argument("--lang", choices=tuple(LANGUAGES), default="", help=_(_LANG))
    verbs: dict[str, Parser] = {}

    class Complete(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            from ddpviz.cli.completion import script

            print(script(values, verbs), end="")
            parser.exit()

    parser.add_argument(
        "--print-completion",
        action=Complete,
        choices=("bash", "zsh"),
        help=_('print completion for a shell: eval "$(ddpviz --print-completion bash)" in ~/.bashrc'),
    )
    group = parser.add_subparsers(title=_("commands"), metavar="COMMAND")

    def verb(
        name: str, command: Callable[[argparse.Namespace], int], summary: str, text: str, usage: str, epilog: str
    ) -> Parser:
        made: Parser = group.add_parser(
            name,
            help=summary,
            description=text,
            usage=f"ddpviz {name} {usage}",
            epilog=epilog,
        )
        made.set_defaults(command=command, parser=made)
        made.option("--lang", choices=tuple(LANGUAGES), default="", help=_(_LANG))
        verbs[name] = made
        return made

    demo = verb(
        "demo",
        commands.demo,
        _("watch one of the demos that come with ddpviz, live"),
        _(_DEMO),
        "[NAME] [--list] [OPTIONS] [-- ARGS...]",
        _(_RUN_CODES),
    )
    demo.add_argument("name", nargs="?", metavar="NAME", help=_("the demo; what follows -- goes to its script"))
    demo.option("--list", action="store_true", help=_("print the demos and what each one shows"))
    _ranks(demo)
    _where(demo)

    run = verb(
        "run",
        commands.run,
        _("watch your own script or command, unmodified, live"),
        f"{_(_RUN)}\n\n{_(_JOB)}",
        "[OPTIONS] SCRIPT.py [ARGS...]\n       ddpviz run [OPTIONS] -- COMMAND [ARGS...]",
        _(_RUN_CODES),
    )
    _ranks(run)
    _measure(run, 2.0, "2")
    _where(run)
    run.option(
        "--control", action="store_true", help=_("take live orders: pause, step, pace (p and j in the dashboard)")
    )

    check = verb(
        "check",
        commands.check,
        _("run a job without a screen and fail on what is wrong with it (for CI)"),
        f"{_(_CHECK)}\n\n{_(_JOB)}",
        "[OPTIONS] SCRIPT.py [ARGS...]\n       ddpviz check [OPTIONS] -- COMMAND [ARGS...]",
        _(_CHECK_CODES),
    )
    _ranks(check)
    _measure(check, None, "full")
    _where(check, screen=False)
    check.option("--json", metavar="FILE", help=_("also write the report there (-: to stdout, and the text to stderr)"))
    check.option(
        "--format", choices=("text", "json", "github"), default="text", help=_("what to print (default: text)")
    )
    levels = ("error", "warning", "never")
    check.option("--fail-on", choices=levels, default="error", help=_("findings that fail the check (default: error)"))
    check.option(
        "--hang-after",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help=_("no progress for so long is a hang (default: 30)"),
    )

    watch = verb(
        "watch",
        commands.watch,
        _("open a run in the dashboard: a finished one, or one that is being written"),
        _(_WATCH),
        "[--no-motion] [--present] [RUN ... | -]",
        _(_READ_CODES),
    )
    watch.add_argument(
        "run", nargs="?", metavar="RUN", help=_("the run; - for a stream on stdin (default: the latest)")
    )
    watch.add_argument(
        "also", nargs="*", metavar="RUN", help=_("other hosts' folders of the same job, shown with it as one")
    )
    watch.option("--no-motion", action="store_true", help=_("no animation"))
    _narration(watch)
    watch.option("--present", action="store_true", help=_("presenter's mode: large marks; PageDown and PageUp tell"))

    runs = verb(
        "list",
        commands.runs,
        _("name the runs there are"),
        _("Name the runs, latest first."),
        "[FOLDER]",
        _(_READ_CODES),
    )
    runs.add_argument(
        "folder", nargs="?", type=Path, metavar="FOLDER", help=_("where to look (default: where runs go)")
    )

    export = verb(
        "export",
        commands.export,
        _("write a run as JSON, tables, a Perfetto trace, an HTML page, or for other tools"),
        _(_EXPORT),
        "RUN --to FORMAT [-o FILE]",
        _(_READ_CODES),
    )
    export.add_argument("run", metavar="RUN", help=_(_RUN_NAME))
    formats = ("json", "perfetto", "csv", "parquet", "html", "svg", "tensorboard", "wandb")
    export.option("--to", choices=formats, required=True, metavar="FORMAT", help=", ".join(formats))
    export.option(
        "-o", "--output", metavar="FILE", help=_("where to write (default: stdout); for tables also a folder/")
    )

    compare = verb(
        "compare", commands.compare, _("say how two runs differ"), _(_COMPARE), "[--screen] RUN RUN", _(_READ_CODES)
    )
    compare.add_argument("first", metavar="RUN", help=_(_RUN_NAME))
    compare.add_argument("second", metavar="RUN", help=_("another one"))
    compare.option("--screen", action="store_true", help=_("both on the screen, with the sentences below them"))

    verb("quiz", commands.quiz, _("a dozen questions on recorded lessons"), _(_QUIZ), "", _(_READ_CODES))
    cat = verb("cat", commands.cat, _("write a run to stdout as one stream"), _(_CAT), "RUN [--follow]", _(_READ_CODES))
    cat.add_argument("run", metavar="RUN", help=_(_RUN_NAME))
    cat.option("--follow", action="store_true", help=_("go on until the run has ended"))
    usage = "[--host HOST] [--port PORT] [watch [RUN] | demo NAME]"
    serve = verb("serve", commands.serve, _("the dashboard in a browser"), _(_SERVE), usage, _(_READ_CODES))
    serve.option(
        "--host", default="127.0.0.1", metavar="HOST", help=_("address to serve on (default: this machine alone)")
    )
    serve.option("--port", type=_integer, default=8000, metavar="PORT", help=_("port to serve on (default: 8000)"))
    return parser, verbs


def _ranks(parser: Parser) -> None:
    many = _("ranks (default: the number of CUDA devices if more than one, else 2)")
    parser.option("-n", "--nproc", dest="nproc", type=_integer, metavar="N", help=many)
    parser.option(
        "--backend",
        choices=("auto", "nccl", "gloo"),
        default="auto",
        metavar="auto|nccl|gloo",
        help=_("auto (the default): NCCL where each rank has a CUDA device of its own, else gloo on the CPU"),
    )


def _measure(parser: Parser, budget: float | None, shown: str) -> None:
    redirect = _("redirect a script written for CUDA and NCCL to the CPU and gloo, in this job alone")
    parser.option("--cpu", action="store_true", help=redirect)
    share = _(
        "share of the step time for norms and checksums (default: {shown}); what happened is always recorded",
        shown=shown,
    )
    parser.option("--budget", type=_budget, default=budget, metavar="PERCENT|full", help=share)


def _where(parser: Parser, *, screen: bool = True) -> None:
    parser.option("--run-dir", type=Path, metavar="DIR", help=_("the run's folder, new or empty (default: a new one)"))
    limit = _(
        "beyond it, old norms and times are thinned: 500M, 4G, none (default: 4G; steps and findings always stay)"
    )
    parser.option("--max-size", type=_size, metavar="SIZE", help=limit)
    if screen:
        parser.option("--no-ui", action="store_true", help=_("plain lines instead of the dashboard"))
        parser.option("--no-motion", action="store_true", help=_("no animation in the dashboard"))
        _narration(parser)
        parser.option(
            "--present", action="store_true", help=_("presenter's mode: large marks; PageDown and PageUp tell")
        )


def _size(text: str) -> str:
    from ddpviz.trace.rundir import max_size

    try:
        max_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _narration(parser: Parser) -> None:
    how_much = _("how much is told: quiet (steps and mistakes), normal, teacher (says why, too)")
    parser.option("--narration", choices=("quiet", "normal", "teacher"), default="", help=how_much)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(_("{text!r} is no whole number", text=text)) from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(_("{text!r} is no number of seconds above 0", text=text))
    return value


def _budget(text: str) -> float | None:
    if text == "full":
        return None
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(_("{text!r} is neither full nor a percentage from 0 to 100", text=text))
    return value
