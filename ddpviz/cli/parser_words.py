"""What argparse itself says, in our catalogue: it looks its words up under `argparse._`, in a domain of its own."""

from __future__ import annotations

import argparse

from ddpviz.language import N_, _

WORDS = (
    N_("usage: "),
    N_("options"),
    N_("positional arguments"),
    N_("show this help message and exit"),
    N_("show program's version number and exit"),
    N_("the following arguments are required: %s"),
    N_("unrecognized arguments: %s"),
    N_("argument %(argument_name)s: %(message)s"),
    N_("invalid choice: %(value)r (choose from %(choices)s)"),
    N_("expected one argument"),
    N_("expected at least one argument"),
)


def adopt() -> None:
    """Let argparse ask us."""
    argparse._ = _  # type: ignore[attr-defined]
