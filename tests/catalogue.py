"""The catalogues of `ddpviz/locale`: what has to be in them, and how they are brought up to date.

    python tests/catalogue.py update    # new sentences of the source into the .po files; those that are gone leave them
    python tests/catalogue.py compile   # the .mo files, which are what is read and shipped

A changed sentence comes as a new one: nothing is guessed ("fuzzy"), and the tests ask for its translation.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from ddpviz.phrases import NOUNS

ROOT = Path(__file__).resolve().parent.parent / "ddpviz"
LOCALES = ROOT / "locale"
KEYWORDS = {
    "_": None,
    "N_": None,
    "NN_": (1, 2),
    "ngettext": (1, 2),
    "pgettext": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
}
CASES = ("", "gen", "loc")
ROOMS = ("cli", "dashboard", "export", "findings", "headless", "lessons", "quiz")  # of those that speak to people

Entry = tuple[str | tuple[str, str], str]  # message or forms, context


def entries() -> Iterator[tuple[Entry, str]]:
    """Every message of the source, and the file that says it."""
    files = [ROOT / "phrases.py", *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
    for path in files:
        name = path.relative_to(ROOT.parent).as_posix()
        for _line, message, _comments, context in extract_from_file("python", path, keywords=KEYWORDS):
            if message:
                yield (message if isinstance(message, str) else (message[0], message[1]), context or ""), name
        for text in key_texts(path):
            yield (text, ""), name
    for noun, many in NOUNS.items():
        for case in CASES:
            yield ((f"{{number}} {noun}", f"{{number}} {many}"), case), "ddpviz/phrases.py"
            yield ((f"{noun} {{numbers}}", f"{many} {{numbers}}"), case), "ddpviz/phrases.py"
    for forms in (("the one rank", "the one rank"), ("both ranks", "both ranks"), ("all {n} ranks", "all {n} ranks")):
        for case in CASES:
            yield (forms, case), "ddpviz/phrases.py"


def key_texts(path: Path) -> Iterator[str]:
    """The tables of keys: label, help and topic of each `Key(...)`, translated where they are drawn."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Key":
            for value in node.args[3:6]:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                    yield value.value


def template() -> Catalog:
    made = Catalog(domain="ddpviz", fuzzy=False)
    for (message, context), name in entries():
        made.add(message, context=context or None, locations=[(name, 0)])
    return made


def load(language: str) -> Catalog:
    with (LOCALES / language / "LC_MESSAGES" / "ddpviz.po").open("rb") as stream:
        return read_po(stream, locale=language, domain="ddpviz")


def compiled(catalogue: Catalog) -> bytes:
    made = io.BytesIO()
    write_mo(made, catalogue)
    return made.getvalue()


def update(language: str) -> None:
    catalogue = load(language)
    catalogue.update(template(), no_fuzzy_matching=True, update_creation_date=False)
    catalogue.obsolete.clear()
    save(language, catalogue)


def save(language: str, catalogue: Catalog) -> None:
    with (LOCALES / language / "LC_MESSAGES" / "ddpviz.po").open("wb") as stream:
        write_po(stream, catalogue, width=118, sort_output=False, include_lineno=False)


if __name__ == "__main__":
    for language in sorted(path.name for path in LOCALES.iterdir()):
        if sys.argv[1:] == ["update"]:
            update(language)
        elif sys.argv[1:] == ["compile"]:
            (LOCALES / language / "LC_MESSAGES" / "ddpviz.mo").write_bytes(compiled(load(language)))
        else:
            sys.exit(__doc__)
