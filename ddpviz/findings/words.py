"""How findings phrase things: ranks, micro-steps, layers, bytes, places. Used by the rules alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpviz import phrases
from ddpviz.language import Words, _, ngettext
from ddpviz.timeline.model import Module, Site, Timeline


def ranges(numbers: Iterable[int], limit: int = 6) -> str:
    """`0`, `0 and 1`, `0-2`, `0-2, 5 and 8`; at most `limit` pieces, then `and 12 more`."""
    wanted = sorted(set(numbers))
    pieces: list[tuple[str, int]] = []
    at = 0
    while at < len(wanted):
        end = at
        while end + 1 < len(wanted) and wanted[end + 1] == wanted[end] + 1:
            end += 1
        if end - at >= 2:
            pieces.append((f"{wanted[at]}-{wanted[end]}", end - at + 1))
        else:
            pieces += [(str(n), 1) for n in wanted[at : end + 1]]
        at = end + 1
    if len(pieces) > limit:
        rest = sum(count for _text, count in pieces[limit - 1 :])
        return _("{some} and {n} more", some=", ".join(text for text, _count in pieces[: limit - 1]), n=rest)
    return listed([text for text, _count in pieces])


listed, start = phrases.listed, phrases.starting


def plural(count: int, noun: str) -> Words:
    """`1 step`, `2 steps`, `12,000 passes`."""
    return phrases.counted(count, noun)


def numbered(noun: str, numbers: Iterable[int]) -> Words:
    """`micro-step 3`, `micro-steps 0-2 and 5`."""
    found = set(numbers)
    return phrases.numbered(noun, found, ranges(found))


def ranks(numbers: Iterable[int], of: Sequence[int] = ()) -> Words:
    """`rank 1`, `ranks 0-2`; `both ranks` or `all 4 ranks` if these are all of `of`."""
    found = set(numbers)
    return phrases.which_ranks(found, ranges(found), of)


def layers(module: Module, indices: Iterable[int], limit: int = 4) -> str:
    """Names of parameters: `fc1.weight, fc1.bias and 5 more`."""
    return names([module.params[i].name for i in indices if 0 <= i < len(module.params)], limit)


def names(items: Sequence[str], limit: int = 4) -> str:
    if len(items) > limit:
        return _("{some} and {n} more", some=", ".join(items[: limit - 1]), n=len(items) - limit + 1)
    return listed(items)


def parameters(items: Sequence[str], limit: int = 4) -> str:
    """`the parameters fc.weight and fc.bias`; names that already say so stay as they are."""
    if all(name.startswith("parameter ") for name in items):
        return names(items, limit)
    return ngettext("the parameter {names}", "the parameters {names}", min(len(items), 2), names=names(items, limit))


def size(count: float) -> str:
    """Bytes, decimal: `512 B`, `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(ns: float) -> str:
    """`850 us`, `3.1 ms`, `12 s`, `3 min`."""
    if ns >= 100e9:
        return f"{ns / 60e9:.0f} min"
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= scale:
            return f"{ns / scale:.2g} {unit}" if ns < 10 * scale else f"{ns / scale:.0f} {unit}"
    return f"{ns:.0f} ns"


def at(site: Site) -> str:
    """` (train.py:19)`, or nothing where the place is not known."""
    return f" ({site.short})" if site.file else ""


def of(tl: Timeline, module: Module) -> str:
    """` of Generator` where the run has several modules, else nothing; with its number where names repeat."""
    if len(tl.modules) < 2:
        return ""
    if sum(m.name == module.name for m in tl.modules) > 1:
        return _(" of {name} (module {id})", name=module.name, id=module.id)
    return _(" of {name}", name=module.name)


def again(count: int, total: int) -> str:
    """A sentence for repeats: ` It is so in 4 of 9 steps.`, or nothing for one."""
    if count < 2:
        return ""
    if count == total:
        return ngettext(" It is so in the step.", " It is so in all {n:,} steps.", total)
    return _(" It is so in {count:,} of {steps}.", count=count, steps=plural(total, "step"))
