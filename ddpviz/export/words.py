"""Facts as words and numbers as people read them, the same in every plain-text output and page. Pure functions."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable

import numpy as np

from ddpviz.language import N_, Words, _, pgettext
from ddpviz.phrases import counted
from ddpviz.timeline.model import Module, RankState, Site, Sync, Timeline
from ddpviz.trace import records as r

# --- numbers ---------------------------------------------------------------------------------------------------------


def size(count: float) -> str:
    """Bytes, decimal: `512 B`, `1.20 MB`."""
    return _scaled(count, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    power = 0
    while abs(value) >= base * 0.9995 and power < len(units) - 1:
        value /= base
        power += 1
    if power == 0 and float(value).is_integer():
        return f"{int(value)} {units[0]}"
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f} {units[power]}"


def duration(ns: float) -> str:
    """`850 us`, `3.10 ms`, `12.0 s`, `3 min 05 s`."""
    seconds = ns / 1e9
    if abs(seconds) >= 100:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        return (
            _("{hours} h {minutes:02d} min", hours=hours, minutes=minutes)
            if hours
            else _("{minutes} min {rest:02d} s", minutes=minutes, rest=rest)
        )
    return _scaled(ns, 1000, ("ns", "us", "ms", "s"))


def number(value: float | None) -> str:
    """About three digits: `0.812`, `12.3`, `1.2e-05`, `nan`; `-` where nothing was measured."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.{min(max(2 - math.floor(math.log10(abs(value))), 0), 5)}f}"
    return f"{value:.1e}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def plural(count: int, noun: str) -> Words:
    """`1 step`, `2 steps`, `12,345 passes`."""
    return counted(count, noun)


def ranges(numbers: Iterable[int]) -> str:
    """`0-2, 5` for 0, 1, 2, 5."""
    parts: list[str] = []
    run: list[int] = []
    for value in [*sorted(set(numbers)), None]:
        if run and (value is None or value != run[-1] + 1):
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(v) for v in run]
            run = []
        if value is not None:
            run.append(value)
    return ", ".join(parts)


# --- what happened ---------------------------------------------------------------------------------------------------

PASS_WORDS = {
    Sync.LOCAL: N_("local"),
    Sync.SYNCED: N_("all-reduced"),
    Sync.PARTIAL: N_("partly all-reduced"),
    Sync.MIXED: N_("mixed: all-reduced on some ranks only"),
    Sync.UNFINISHED: N_("unfinished"),
    Sync.RUNNING: N_("running"),
    Sync.ABSENT: N_("never ran on every rank"),
}


# What `Sync`, `Gradients`, `Replicas` and severities call themselves, for `_`.
VERDICTS = (
    N_("synced"), N_("local"), N_("stale"), N_("mixed"), N_("none"), N_("partial"), N_("unfinished"), N_("running"),
    N_("absent"), N_("equal"), N_("diverged"), N_("unknown"), N_("error"), N_("warning"), N_("info"),
)  # fmt: skip


def module_name(tl: Timeline, module: Module) -> str:
    """The module's class name, with its number where there is more than one module."""
    return _("{name} (module {id})", name=module.name, id=module.id) if len(tl.modules) > 1 else module.name


def bucket_layers(module: Module, layout: int, index: int, limit: int = 3) -> str:
    """The parameters of a bucket, shortened: `head.weight, head.bias, trunk.2.weight and 5 more`."""
    if not 0 <= layout < len(module.layouts) or not 0 <= index < len(module.layouts[layout].buckets):
        return ""
    names = [module.params[p].name for p in module.layouts[layout].buckets[index] if 0 <= p < len(module.params)]
    return ", ".join(names[:limit]) + (_(" and {value} more", value=len(names) - limit) if len(names) > limit else "")


def place(site: Site) -> str:
    return _(" at {short}", short=site.short) if site.file else ""


def last_event(tl: Timeline, rank: int) -> str:
    """The newest thing known of a rank, in words; an empty string if nothing is."""
    state = tl.ranks.get(rank)
    events: list[tuple[int, str]] = []
    if state is not None:
        events.append((state.started_ns, _("its process started")))
    for module in tl.modules:
        lane, name = module.lanes.get(rank), module_name(tl, module)
        if lane is None:
            continue
        if module.layouts:
            events.append((module.layouts[0].at, _("DDP wrapped {name}{place}", name=name, place=place(module.site))))
        if len(lane.passes):
            row, sync = lane.passes[-1], Sync(int(lane.sync[-1]))
            site = place(tl.site(rank, int(row["backward_site"])))
            events.append(
                (
                    int(row["end"]),
                    _(
                        "backward {index} of {name}, {sync}{site}",
                        index=int(row["index"]),
                        name=name,
                        sync=_(PASS_WORDS[sync]),
                        site=site,
                    ),
                )
            )
        if len(lane.steps):
            row = lane.steps[-1]
            site = place(tl.site(rank, int(row["site"])))
            events.append((int(row["end"]), _("optimizer step {index}{site}", index=int(row["index"]), site=site)))
    for group in tl.groups.values():
        rows = group.collectives.get(rank)
        if rows is not None and len(rows):
            row = rows[-1]
            site = place(tl.site(rank, int(row["site"])))
            events.append((max(int(row["begin"]), int(row["end"])), f"{kind_word(int(row['kind']))}{site}"))
    return max(events, key=lambda e: e[0])[1] if events else ""


def kind_word(kind: int) -> str:
    """`all-reduce`, `barrier`, ...; `collective` for a kind that this version does not know."""
    try:
        return r.CollectiveKind(kind).name.lower().replace("_", "-") if kind else "collective"
    except ValueError:
        return "collective"


def waiting_for(tl: Timeline, state: RankState) -> str | None:
    """What a rank is blocked in, in words, or None if it is not known to be blocked."""
    stack = state.stack
    if stack is None or stack.doing == "computing" or state.exit is not None:
        return None
    text = stack.doing
    if stack.count >= 0:
        text += f" #{stack.count}"
    module = tl.modules[stack.module] if 0 <= stack.module < len(tl.modules) else None
    if module is not None and stack.bucket >= 0 and module.layouts:
        layers = bucket_layers(module, len(module.layouts) - 1, stack.bucket)
        text += _(" of bucket {bucket}", bucket=stack.bucket) + (f" ({layers})" if layers else "")
    if module is not None and stack.pass_index >= 0:
        text += _(
            " in backward {pass_index} of {module_name}",
            pass_index=stack.pass_index,
            module_name=module_name(tl, module),
        )
    return text + place(tl.site(state.rank, stack.site))


def rank_status(tl: Timeline, rank: int) -> str:
    """The rank's status in the report; "missing" if nothing was ever heard from it."""
    state = tl.ranks.get(rank)
    return "missing" if state is None else state.status


def norms_of(module: Module, index: int, field: str, flag: r.PassFlag) -> list[float | None]:
    """That norm of one pass on each rank of the module; None where it was not measured."""
    found: list[float | None] = []
    for rank in module.ranks:
        lane = module.lanes.get(rank)
        row = lane.passes[index] if lane is not None and index < len(lane.passes) else None
        found.append(float(row[field]) if row is not None and int(row["flags"]) & flag else None)
    return found


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that were measured; None if none was."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def rank_end(tl: Timeline, rank: int) -> str:
    """How a rank ended or stands: `failed with exit code 1 (ValueError: ...)`, `was killed by SIGKILL`."""
    state = tl.ranks.get(rank)
    if state is None:
        return _("was never heard of")
    if state.signal is not None:
        return _("was killed by {signal_name}", signal_name=signal_name(state.signal))
    code = state.exit_code if state.exit_code is not None else state.exit.code if state.exit is not None else None
    how = rank_word(state.status)
    if code is not None and state.status != "finished":
        how += _(" with exit code {code}", code=code)
    if state.exit is not None and state.exit.error:
        how += f" ({state.exit.error.splitlines()[0][:200]})"
    return how


def rank_word(status: str) -> str:
    """What a rank did or does, by its status: `finished`, `was running`."""
    return {
        "finished": pgettext("rank", "finished"),
        "failed": pgettext("rank", "failed"),
        "died": pgettext("rank", "died"),
        "starting": pgettext("rank", "was starting"),
        "running": pgettext("rank", "was running"),
        "waiting": pgettext("rank", "was waiting"),
    }.get(status, _("was {status}", status=status))


def run_word(status: str) -> str:
    """A run's status as a word."""
    return {
        "starting": pgettext("run", "starting"),
        "running": pgettext("run", "running"),
        "finished": pgettext("run", "finished"),
        "failed": pgettext("run", "failed"),
        "hung": pgettext("run", "hung"),
        "interrupted": pgettext("run", "interrupted"),
    }.get(status, status)


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number where the system has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return _("signal {number}", number=number)
