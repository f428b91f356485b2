"""How findings phrase things: ranks, micro-steps, layers, bytes, places. Pure functions; used by the rules alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
        rest = sum(count for _, count in pieces[limit - 1 :])
        return ", ".join(text for text, _ in pieces[: limit - 1]) + f" and {rest} more"
    return listed([text for text, _ in pieces])


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 step`, `2 steps`, `12,000 passes`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """`micro-step 3`, `micro-steps 0-2 and 5`."""
    found = set(numbers)
    return f"{noun}{'s' if len(found) != 1 else ''} {ranges(found)}"


def ranks(numbers: Iterable[int], of: Sequence[int] = ()) -> str:
    """`rank 1`, `ranks 0-2`; `both ranks` or `all 4 ranks` if these are all of `of`."""
    found = set(numbers)
    if of and len(found) > 1 and found == set(of):
        return "both ranks" if len(found) == 2 else f"all {len(found)} ranks"
    return numbered("rank", found)


def start(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def layers(module: Module, indices: Iterable[int], limit: int = 4) -> str:
    """Names of parameters: `fc1.weight, fc1.bias and 5 more`."""
    return names([module.params[i].name for i in indices if 0 <= i < len(module.params)], limit)


def names(items: Sequence[str], limit: int = 4) -> str:
    if len(items) > limit:
        return ", ".join(items[: limit - 1]) + f" and {len(items) - limit + 1} more"
    return listed(items)


def parameters(items: Sequence[str], limit: int = 4) -> str:
    """`the parameters fc.weight and fc.bias`; names that already say so stay as they are."""
    if all(name.startswith("parameter ") for name in items):
        return names(items, limit)
    return f"the parameter{'s' if len(items) > 1 else ''} {names(items, limit)}"


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
    alike = sum(m.name == module.name for m in tl.modules) > 1
    return f" of {module.name}" + (f" (module {module.id})" if alike else "")


def again(count: int, total: int, noun: str = "step") -> str:
    """A sentence for repeats: ` It is so in 4 of 9 steps.`, or nothing for one."""
    if count < 2:
        return ""
    return f" It is so in {f'all {count:,} {noun}s' if count == total else f'{count:,} of {plural(total, noun)}'}."
