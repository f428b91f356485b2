"""The command line: arguments, exit codes, and errors of one line. What a command needs is imported when it runs.

`ddpviz --help` has to appear at once, so this package imports argparse and the cheapest parts of the standard library.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise

from ddpviz import language
from ddpviz.cli.arguments import INTERRUPTED, UNREADABLE, USAGE, parse
from ddpviz.language import LANGUAGES
from ddpviz.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. No traceback of ddpviz's own reaches the user."""
    _mind_streams()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # a NaN in somebody's gradients is no warning of ours to print over the screen
    try:
        arguments = list(sys.argv[1:] if argv is None else argv)
        _speak(next((word for word in _asked(arguments) if word in LANGUAGES), ""))  # for the help and the complaints
        options = parse(arguments)
        if options.lang:
            language.use(options.lang)
        code = int(options.command(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:
        return _explain(error)


def _asked(arguments: Sequence[str]) -> list[str]:
    """What may be the value of --lang; whether it is ddpviz's own the parser decides."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    following = [value for word, value in pairwise(own) if word == "--lang"]
    return [*following, *(word.removeprefix("--lang=") for word in own if word.startswith("--lang="))]


def _speak(flag: str) -> None:
    """Choose the language: the command line's, the settings', the locale's."""
    setting = ""
    if not flag and _settings_there():
        from ddpviz.dashboard.settings import Settings

        setting = Settings.load().language
    language.use(language.choose(flag, setting))


def _settings_there() -> bool:
    """Whether there may be settings to read; on Linux without importing what finds their place."""
    if sys.platform != "linux":
        return True
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.exists(os.path.join(folder, "ddpviz", "dashboard.json"))


def _mind_streams() -> None:
    """Streams that can be written to whatever comes: closed ones lead nowhere, characters they lack become `?`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (for as long as the process lives)
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _explain(error: Exception) -> int:
    """One line for the user, and the exit code. A fault of ddpviz's own goes into a file, whole."""
    kind = (type(error).__module__, type(error).__name__)
    if kind == ("ddpviz.launch.spec", "JobError"):
        return _complain(str(error), USAGE)
    if kind == ("ddpviz.trace.reader", "RunError"):
        return _complain(str(error), UNREADABLE)
    if os.environ.get("DDPVIZ_DEBUG"):
        raise error
    import tempfile
    import traceback

    with tempfile.NamedTemporaryFile("w", prefix="ddpviz-error-", suffix=".txt", delete=False) as report:
        report.write(f"ddpviz {__version__}, Python {sys.version}\n{sys.argv}\n\n")
        traceback.print_exception(error, file=report)
    return _complain(f"a fault in ddpviz itself ({type(error).__name__}: {error}); details: {report.name}", 70)


def _complain(line: str, code: int) -> int:
    print(f"ddpviz: {line}", file=sys.stderr)
    return code
