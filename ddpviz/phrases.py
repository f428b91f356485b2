"""Phrases that stand in many sentences and that other languages inflect: `4 steps`, `micro-steps 0-2`, `both ranks`.

A leaf, as language.py is. Each phrase is `Words`: a translation asks for its case, `{steps:gen}`; English has one.
The cases are `nom` (also for the accusative, which is the same here), `gen` and `loc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpviz.language import Words, _, current, ngettext, npgettext

# One noun a row, with the form for several. The catalogue has each in every case, with and without a number.
NOUNS = {
    "step": "steps",
    "micro-step": "micro-steps",
    "rank": "ranks",
    "window": "windows",
    "bucket": "buckets",
    "buffer": "buffers",
    "parameter": "parameters",
    "element": "elements",
    "all-reduce": "all-reduces",
    "all-reduced micro-step": "all-reduced micro-steps",
    "later measured step": "later measured steps",
    "backward pass": "backward passes",
    "pass": "passes",
    "all-reduced pass": "all-reduced passes",
    "cell": "cells",
    "error": "errors",
    "warning": "warnings",
    "finding": "findings",
    "note": "notes",
    "line": "lines",
    "layer": "layers",
    "host": "hosts",
    "record": "records",
    "time": "times",
    "module": "modules",
    "sample": "samples",
    "second": "seconds",
    "optimizer": "optimizers",
    "hint": "hints",
    "place": "places",
    "number": "numbers",
    "tensor": "tensors",
    "more rank": "more ranks",
}


def counted(n: int, noun: str, shown: str = "") -> Words:
    """`1 step`, `2 steps`, `12,000 passes`; `shown` is the number as it is to be written."""
    one, many = f"{{number}} {noun}", f"{{number}} {NOUNS.get(noun, noun + 's')}"
    shown = shown or f"{n:,}"
    return Words(lambda case: _in_case(case, one, many, n, number=shown))


def numbered(noun: str, numbers: Iterable[int | str], shown: str) -> Words:
    """`micro-step 3`, `micro-steps 0-2 and 5`; `shown` are the numbers as they are to be written."""
    one, many = f"{noun} {{numbers}}", f"{NOUNS.get(noun, noun + 's')} {{numbers}}"
    # Not by the count but by whether it is one: languages do not inflect "ranks 0-4" by their number.
    several = 1 if len(set(numbers)) == 1 else 2
    return Words(lambda case: _in_case(case, one, many, several, numbers=shown))


def all_ranks(count: int) -> Words:
    """`both ranks`, `all 4 ranks`, `the one rank`."""

    def say(case: str) -> str:
        if count == 1:
            return _in_case(case, "the one rank", "the one rank", 1)
        if count == 2:
            return _in_case(case, "both ranks", "both ranks", 1)
        return _in_case(case, "all {n} ranks", "all {n} ranks", count)

    return Words(say)


def which_ranks(numbers: Iterable[int], shown: str, of: Sequence[int] = ()) -> Words:
    """`rank 1`, `ranks 0-2`; `both ranks` or `all 4 ranks` if these are all of `of`."""
    found = set(numbers)
    return all_ranks(len(found)) if of and len(found) > 1 and found == set(of) else numbered("rank", found, shown)


def _in_case(case: str, one: str, many: str, n: int, /, **fields: str) -> str:
    if case == "nom" or current() == "en":
        return ngettext(one, many, n, **fields)
    return npgettext(case, one, many, n, **fields)


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return items[0] if items else ""
    return _("{all_but_last} and {last}", all_but_last=", ".join(items[:-1]), last=items[-1])


def starting(text: str) -> str:
    """The text with a capital first letter; of a phrase, in every case."""
    if isinstance(text, Words):
        phrase = text
        return Words(lambda case: _capital(phrase.case(case)))
    return _capital(text)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
