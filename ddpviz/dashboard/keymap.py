"""The user's own keys: what the settings file's `keys` makes of the tables of keys. Pure; says what it does not take.

An action's name is that of the table, with `-back` for the one that goes back or makes less: `pause`, `step`,
`step-back`, `view-norms`. A key is written as the character itself or by name: `p`, `?`, `ctrl+l`, `shift+left`, `f5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module

from textual.binding import Binding, BindingType
from textual.keys import Keys, _character_to_key, format_key, key_to_character

from ddpviz.dashboard.keys import KEYS, Key
from ddpviz.language import _

VIEWS_WITH_KEYS = {
    "backward": "BackwardView",
    "findings": "FindingsView",
    "layers": "LayersView",
    "norms": "NormsView",
    "output": "OutputView",
}
TAKEN_ELSEWHERE = ("ctrl+b", "ctrl+i", "ctrl+m", "ctrl+s", "ctrl+q", "ctrl+z")  # terminals and multiplexers keep them
SHOWN = {
    "left": "←", "right": "→", "up": "↑", "down": "↓", "escape": "Esc", "enter": "Enter", "home": "Home", "end": "End",
    "pageup": "PgUp", "pagedown": "PgDn", "insert": "Ins", "delete": "Del", "tab": "Tab", "space": "space",
    "backspace": "Backspace",
}  # fmt: skip
_NAMES = {key.value for key in Keys}

Keymap = dict[str, str]  # name of an action -> keys as Textual names them, comma separated


def name_of(action: str) -> str:
    """The name of an action in the settings: `step(-1)` is `step-back`, `view('norms')` is `view-norms`."""
    base, _rest, argument = action.replace("_", "-").rstrip(")").partition("(")
    if not argument:
        return base
    try:
        return base if float(argument) >= 1 else f"{base}-back"
    except ValueError:
        return f"{base}-{argument.strip(chr(39))}"


def bound(keys: Iterable[Key], first: tuple[str, ...] = ()) -> list[BindingType]:
    """Textual's bindings of a table, under the names that a keymap knows; actions of `first` before any widget's."""
    return [
        Binding(
            key.keys,
            key.action,
            key.label,
            show=False,
            priority=key.action.split("(")[0] in first,
            id=name_of(key.action),
        )
        for key in keys
    ]


def normal(key: object) -> str | None:
    """A key as Textual names it; None if there is no such key."""
    if not isinstance(key, str) or not key:
        return None
    if len(key) == 1:
        return _character_to_key(key) if key.isprintable() else None
    *modifiers, last = key.lower().split("+") if not key.endswith("++") else [*key[:-2].lower().split("+"), "+"]
    if len(set(modifiers)) < len(modifiers) or set(modifiers) - {"ctrl", "shift", "alt"}:
        return None
    if modifiers == ["shift"] and len(last) == 1 and last.isalpha():
        return last.upper()  # as terminals send it
    last = _character_to_key(last) if len(last) == 1 else last
    if last not in _NAMES and key_to_character(last) is None:
        return None
    return "+".join([*sorted(modifiers, key=("alt", "ctrl", "shift").index), last])


def written(key: str) -> str:
    """A key as people write it: `←`, `?`, `ctrl+l`, `F5`."""
    *modifiers, last = key.split("+")
    text = SHOWN.get(last) or format_key(last)
    text = text.upper() if re.fullmatch(r"f\d+", text) else text
    return "⇧" + text if modifiers == ["shift"] else "+".join([*modifiers, text])


def remapped(wanted: Mapping[str, object]) -> tuple[Keymap, list[str]]:
    """The keymap that can be had, and a line for each entry that cannot."""
    if not wanted:
        return {}, []
    scopes = [KEYS, *_views()]
    before: Keymap = {}
    for table in scopes:
        for key in table:
            before[name_of(key.action)] = key.keys
    asked, problems = _read(wanted, before)
    while True:  # what is refused keeps its old key, which another entry may have counted on
        refused = next(((name, line) for name in asked if (line := _clash(name, asked, scopes))), None)
        if refused is None:
            return asked, problems
        del asked[refused[0]]
        problems.append(refused[1])


def _views() -> list[tuple[Key, ...]]:
    return [getattr(import_module(f"ddpviz.dashboard.views.{k}"), cls).KEYS for k, cls in VIEWS_WITH_KEYS.items()]


def _read(wanted: Mapping[str, object], before: Keymap) -> tuple[Keymap, list[str]]:
    asked: Keymap = {}
    problems = []
    for name, value in wanted.items():
        if name not in before:
            near = get_close_matches(name, before, 1)
            problems.append(_("keys: there is no action {name!r}", name=name) + (f"; {near[0]}?" if near else ""))
            continue
        listed = value if isinstance(value, list) else [value]
        keys = [normal(key) for key in listed]
        if not keys or None in keys:
            what = next((key for key, known in zip(listed, keys, strict=True) if known is None), value)
            problems.append(_("keys: {name}: {what!r} is no key", name=name, what=what))
        elif kept := next((key for key in keys if key in TAKEN_ELSEWHERE), None):
            problems.append(_("keys: {name}: terminals keep {kept} for themselves", name=name, kept=kept))
        else:
            asked[name] = ",".join(key for key in keys if key)
    return asked, problems


def _clash(name: str, asked: Keymap, scopes: list[tuple[Key, ...]]) -> str:
    """Why `name` cannot have its keys: another action that works in the same view has one of them."""
    mine = set(asked[name].split(","))
    general = scopes[0]
    for table in scopes:
        for its in table if table is general else (*table, *general):
            other = name_of(its.action)
            if other == name or not any(name_of(k.action) == name for k in (*table, *general)):
                continue
            old = {key for k in (*table, *general) if name_of(k.action) == name for key in k.keys.split(",")}
            theirs = set(asked.get(other, its.keys).split(","))
            both = (mine & theirs) - (old & set(its.keys.split(",")))  # a view may take a general key over, as ever
            if both:
                key = written(min(both))
                return _(
                    "keys: {name}: {key} is the key of {other}; {name} keeps its own", name=name, key=key, other=other
                )
    return ""


def apply(keys: Iterable[Key], keymap: Keymap) -> tuple[Key, ...]:
    """The table as it is in force, for the footer and the help."""
    table = tuple(keys)
    if not keymap:
        return table
    shown = {name_of(key.action): key.shown for key in table}
    shown |= {name: written(its.split(",")[0]) for name, its in keymap.items()}
    out = []
    for key in table:
        name = name_of(key.action)
        ways = (f"{name.removesuffix('-back')}-back", name.removesuffix("-back"))
        pair = " ".join(shown[way] for way in ways) if key.pair and set(ways) & keymap.keys() else key.pair
        out.append(key._replace(keys=keymap.get(name, key.keys), shown=shown[name], pair=pair))
    return tuple(out)
