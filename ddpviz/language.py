"""The language in which ddpviz speaks to people: standard gettext, looked up when a sentence is made, not on import.

`_("Step {index} of {count}", index=3, count=9)` translates and then fills in; `ngettext` chooses the plural by its
number, which is also the field `n`; `N_` marks what stands in a table and is translated by `_` when it is drawn. What
programs read stays English: rule ids, the report, tables, `--format github`; they are made `with english():`.

A leaf like version.py: any room may import it. Catalogues are read when the first sentence in that language is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gettext import NullTranslations

__all__ = [
    "LANGUAGES",
    "NN_",
    "N_",
    "Words",
    "_",
    "choose",
    "current",
    "english",
    "ngettext",
    "npgettext",
    "pgettext",
    "use",
]

LANGUAGES = {"en": "English", "ru": "русский"}
DOMAIN, FOLDER = "ddpviz", os.path.join(os.path.dirname(__file__), "locale")

_chosen = "en"
_forced: ContextVar[str] = ContextVar("ddpviz language", default="")


def choose(flag: str = "", setting: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """The language: as the command line says, else the settings, else the locale's, else English."""
    for wanted in (flag, setting):
        if wanted in LANGUAGES:
            return wanted
    locale = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := environment.get(name))), "")
    wanted = locale.partition(".")[0].partition("_")[0].lower()
    return wanted if wanted in LANGUAGES else "en"


def use(language: str) -> None:
    """Speak this language from now on; one that is not there is English."""
    global _chosen
    _chosen = language if language in LANGUAGES else "en"


def current() -> str:
    return _forced.get() or _chosen


@contextmanager
def english() -> Iterator[None]:
    """English in here, whatever was chosen, for this thread alone."""
    before = _forced.set("en")
    try:
        yield
    finally:
        _forced.reset(before)


@lru_cache
def _catalogue(language: str) -> NullTranslations:
    import gettext

    return gettext.translation(DOMAIN, FOLDER, [language], fallback=True)


def _(text: str, /, **fields: Any) -> str:
    """The text in the language in force, filled in."""
    language = current()
    said = text if language == "en" or not text else _catalogue(language).gettext(text)
    return _filled(said, text, fields)


def ngettext(one: str, many: str, n: int, /, **fields: Any) -> str:
    """The form for this number, filled in; the number is the field `n`."""
    language = current()
    text = one if n == 1 else many
    said = text if language == "en" else _catalogue(language).ngettext(one, many, n)
    return _filled(said, text, {"n": n, **fields})


def pgettext(context: str, text: str, /, **fields: Any) -> str:
    """As `_`, for a word that other languages say differently in this context."""
    language = current()
    said = text if language == "en" else _catalogue(language).pgettext(context, text)
    return _filled(said, text, fields)


def npgettext(context: str, one: str, many: str, n: int, /, **fields: Any) -> str:
    """As `ngettext`, likewise."""
    language = current()
    text = one if n == 1 else many
    said = text if language == "en" else _catalogue(language).npgettext(context, one, many, n)
    return _filled(said, text, {"n": n, **fields})


def N_(text: str) -> str:
    """Marks a text for translation where it stands; `_` translates it where it is used."""
    return text


def NN_(one: str, many: str) -> tuple[str, str]:
    """Marks a pair of forms; `ngettext` translates it where it is used."""
    return one, many


def _filled(said: str, text: str, fields: Mapping[str, Any]) -> str:
    if not fields:
        return said
    try:
        return said.format(**fields)
    except (KeyError, IndexError, ValueError):  # a slip in a catalogue, which the tests look for, takes nothing down
        return text.format(**fields)


class Words(str):
    """A phrase that other languages inflect: a translation asks for a case by `{ranks:gen}`; English has one form.

    The phrase itself is its `nom`; `start` makes the first letter a capital one: `{ranks:start}`, `{ranks:gen start}`.
    """

    _say: Callable[[str], str]

    def __new__(cls, say: Callable[[str], str]) -> Words:
        made = super().__new__(cls, say("nom"))
        made._say = say
        return made

    def case(self, case: str) -> str:
        return str(self) if case in ("", "nom") or current() == "en" else self._say(case)

    def __format__(self, spec: str) -> str:
        said = self.case(spec.removesuffix("start").strip())
        return said[:1].upper() + said[1:] if spec.endswith("start") else said
