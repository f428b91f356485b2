"""Job: what runs, where and how: ranks, backend and why, modules with their buckets, DDP's arguments, the watching."""

from __future__ import annotations

import shlex

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.names import layers_of
from ddpviz.dashboard.state import Cursor
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.language import N_, _
from ddpviz.timeline.model import Module, RankState, Timeline
from ddpviz.trace.records import PassFlag

WIDE = 130  # cells from which the modules stand beside the ranks
LABEL = 11
STATUS = {  # what a rank's state looks like
    "running": (M.RUNNING, "running"),
    "waiting": (M.WAITING, "waiting"),
    "finished": (M.GOOD, "synced"),
    "failed": (M.WRONG_STEP, "wrong"),
    "died": (M.DEAD, "wrong"),
}
STATUSES = {
    "starting": N_("starting"),
    "running": N_("running"),
    "waiting": N_("waiting"),
    "finished": N_("finished"),
    "failed": N_("failed"),
    "hung": N_("hung"),
    "interrupted": N_("interrupted"),
    "died": N_("died"),
}
WORST = ("died", "failed", "waiting", "running", "finished")


def draw(tl: Timeline, cursor: Cursor, width: int, height: int) -> Canvas:
    """Everything about the job; long where there is much to say."""
    canvas = Canvas(width)
    if width < WIDE:
        _draw_run(canvas, tl)
        _draw_ranks(canvas, tl, cursor)
        _draw_modules(canvas, tl)
        return canvas
    left, right = Canvas(width * 9 // 20), Canvas(width - width * 9 // 20 - 2)
    _draw_run(left, tl)
    _draw_ranks(left, tl, cursor)
    _draw_modules(right, tl)
    canvas.paste(left, 0, 0)
    canvas.paste(right, left.width + 2, 0)
    return canvas


def _head(canvas: Canvas, text: str, more: str = "") -> None:
    if canvas.height:
        canvas.line("")
    canvas.line((f" {text}", "strong bold"), (f"  {more}" if more else "", "dim"))


def _fact(canvas: Canvas, label: str, text: str, look: str = "") -> None:
    """A label and its text, wrapped beside it."""
    for number, row in enumerate(wrap(text, canvas.width - LABEL - 4)):
        canvas.line((f"  {label if number == 0 else '':<{LABEL}} ", "dim"), (row, look))


def _draw_run(canvas: Canvas, tl: Timeline) -> None:
    run = tl.run
    _head(canvas, run.title or "Job", run.id)
    if run.command:
        _fact(canvas, _("command"), shlex.join(run.command))
    code = _(", exit code {exit_code}", exit_code=run.exit_code) if run.exit_code is not None else ""
    look = {"finished": "synced", "running": "running", "starting": "running"}.get(run.status, "wrong")
    _fact(canvas, _("status"), _(STATUSES.get(run.status, run.status)) + code, look if not run.exit_code else "wrong")
    if run.backend:
        size = f" x{run.world_size}" if run.world_size else ""
        _fact(canvas, _("backend"), f"{run.backend}{size}" + (f" ({run.backend_reason})" if run.backend_reason else ""))
    if run.redirected:
        _fact(canvas, _("redirected"), _("written for CUDA and NCCL; --cpu runs it on the CPU with gloo"), "running")
    versions = [
        _("torch {torch}", torch=run.torch) if run.torch else "",
        _("ddpviz {ddpviz}", ddpviz=run.ddpviz) if run.ddpviz else "",
    ]
    if any(versions):
        _fact(canvas, _("versions"), ", ".join(word for word in versions if word))
    _fact(canvas, _("watched by"), _watching(run.observed_by))
    _fact(canvas, _("norms"), _sampling(tl))
    for note in run.notes:
        _fact(canvas, _("note"), note, "running")


def _watching(how: str) -> str:
    return {
        "collectives": _("the process group's own hooks: each collective as it is issued"),
        "comm-hook": _("a transparent communication hook (torch before 2.14 has no hooks on collectives)"),
    }.get(how, how or _("nothing yet"))


def _sampling(tl: Timeline) -> str:
    passes = sampled = 0
    for module in tl.modules:
        for lane in module.lanes.values():
            passes += len(lane.passes)
            sampled += int(((lane.passes["flags"] & int(PassFlag.SAMPLED)) != 0).sum())
    budget = (
        _("all are measured")
        if tl.run.budget is None
        else _("within {budget:g} % of the step time", budget=tl.run.budget)
    )
    return budget + (_(": {percent} of the passes so far", percent=fmt.percent(sampled / passes)) if passes else "")


def _draw_ranks(canvas: Canvas, tl: Timeline, cursor: Cursor) -> None:
    hosts = len({state.host for state in tl.ranks.values() if state.host})
    missing = [rank for rank in range(tl.run.world_size) if rank not in tl.ranks]
    _head(
        canvas,
        _("Ranks"),
        _("{count} on {hosts}", count=len(tl.ranks), hosts=fmt.plural(hosts, "host"))
        if tl.ranks
        else _("none heard of yet"),
    )
    if missing and tl.ranks:
        _fact(
            canvas,
            "silent",
            _(
                "no word yet from rank{value} {ranks}",
                value="" if len(missing) == 1 else "s",
                ranks=fmt.ranges(missing),
            ),
            "waiting",
        )
    if not tl.ranks:
        return
    words = cursor.filter.split()
    states = [state for state in tl.ranks.values() if not words or _matches(state, words)]
    states.sort(key=lambda state: (WORST.index(state.status), state.rank))
    rows: list[tuple[str, ...]] = [
        (_("rank"), "", _("status"), _("passes"), _("heard"), _("memory"), _("device"), "pid", _("host"))
    ]
    rows += [_rank_row(tl, state) for state in states]
    lines = fmt.columns(rows, right=(0, 3, 4, 5, 7), gap=1)
    canvas.line(("  " + lines[0], "dim"))
    for state, line in zip(states, lines[1:], strict=True):
        mark, look = STATUS[state.status]
        chosen = " chosen" if state.rank == cursor.rank else ""
        y = canvas.line((fmt.shorten("  " + line, canvas.width - 1), chosen.strip()))
        at = line.find(mark.glyph)
        if at >= 0:
            canvas.put(2 + at, y, f"{mark.glyph} {_(STATUSES.get(state.status, state.status))}", f"{look} bold{chosen}")
        canvas.hits[y] = state.rank
        for text, tone in _troubles(tl, state):
            canvas.wrap(text, tone, indent=7)


def _matches(state: RankState, words: list[str]) -> bool:
    text = _(
        "rank {rank} {host} {device} {status} {pid}",
        rank=state.rank,
        host=state.host,
        device=state.device,
        status=state.status,
        pid=state.pid,
    ).lower()
    return all(word.lower() in text.split() or (not word.isdigit() and word.lower() in text) for word in words)


def _rank_row(tl: Timeline, state: RankState) -> tuple[str, ...]:
    lanes = [module.lanes[state.rank] for module in tl.modules if state.rank in module.lanes]
    passes = sum(len(lane.passes) for lane in lanes)
    memory = max((int(lane.passes["memory"][-1]) for lane in lanes if len(lane.passes)), default=0)
    over = state.status in ("finished", "failed", "died")
    quiet = max(tl.now_ns - state.last_ns, 0)
    heard = "" if over else _("now") if quiet < 2e9 else _("{time} ago", time=fmt.duration(quiet))
    return (
        str(state.rank),
        STATUS[state.status][0].glyph,
        _(STATUSES.get(state.status, state.status)),
        f"{passes:,}".replace(",", " "),
        heard,
        fmt.size(memory) if memory else M.UNSAMPLED.glyph,
        state.device or state.backend,
        str(state.pid or ""),
        state.host,
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _troubles(tl: Timeline, state: RankState) -> list[tuple[str, str]]:
    """What else has to be said of a rank: how it ended, what it waits for, what was lost."""
    said: list[tuple[str, str]] = []
    if state.signal is not None:
        said.append((_("ended by signal {signal}", signal=state.signal), "wrong"))
    elif state.exit is not None and state.exit.error:
        said.append((_first_line(state.exit.error), "wrong"))
    elif state.exit_code:
        said.append((_("exit code {exit_code}", exit_code=state.exit_code), "wrong"))
    if state.status == "waiting" and state.stack is not None:
        site = tl.site(state.rank, state.stack.site)
        since = fmt.duration(max(tl.now_ns - state.stack.since, 0))
        said.append(
            (
                _("in {doing} for {since}", doing=state.stack.doing, since=since)
                + (f"  {site.short}  {site.code}" if site.file else ""),
                "waiting",
            )
        )
    if state.refused:
        refused = state.refused[-1]
        said.append(
            (
                _(
                    "PyTorch refused in {where}: {first_line}",
                    where=refused.where,
                    first_line=_first_line(refused.message),
                ),
                "wrong",
            )
        )
    if state.dropped:
        said.append((_("{records} could not be written", records=fmt.plural(state.dropped, "record")), "running"))
    if state.attempt:
        said.append((_("restarted {times}", times=fmt.plural(state.attempt, "time")), "dim"))
    return said


def _draw_modules(canvas: Canvas, tl: Timeline) -> None:
    if not tl.modules:
        _head(
            canvas,
            _("Modules"),
            _("no DDP module yet") if tl.run.status in ("running", "starting") else _("no DDP module"),
        )
    for module in tl.modules:
        _draw_module(canvas, tl, module)


def _draw_module(canvas: Canvas, tl: Timeline, module: Module) -> None:
    _head(canvas, f"{module.name}", _("DDP module {id}", id=module.id) if len(tl.modules) > 1 else _("DDP module"))
    managed = [param for param in module.params if param.managed]
    total = fmt.size(module.numel * module.itemsize)
    count = _("{si} in {tensors}", si=fmt.si(module.numel), tensors=fmt.plural(len(managed), "tensor"))
    _fact(
        canvas,
        _("parameters"),
        _("{count}, {dtype}, {total} of gradients", count=count, dtype=module.dtype, total=total),
    )
    group = tl.groups.get(module.group)
    where = _("ranks {ranks}", ranks=fmt.ranges(module.ranks)) + (
        f", {group.backend}" if group and group.backend else ""
    )
    _fact(canvas, _("group"), where)
    if module.site.file:
        _fact(canvas, _("wrapped at"), f"{module.site.short}  {module.site.code}")
    if module.hook:
        _fact(canvas, _("comm hook"), module.hook, "running")
    for param in [param for param in module.params if not param.managed][:8]:
        _fact(canvas, _("not reduced"), f"{param.name} ({fmt.si(param.numel)}, {param.reason})", "wrong")
    unused = sorted({name for lane in module.lanes.values() if lane.unused for name in lane.unused.params})
    if unused:
        names = [module.params[i].name for i in unused if i < len(module.params)]
        _fact(
            canvas,
            _("no gradient"),
            ", ".join(names[:6]) + (_(" and {value} more", value=len(names) - 6) if len(names) > 6 else ""),
            "running",
        )
    if module.options:
        _fact(canvas, _("arguments"), ", ".join(f"{name}={value}" for name, value in module.options.items()))
    _draw_buckets(canvas, module)


def _draw_buckets(canvas: Canvas, module: Module) -> None:
    if not module.layouts:
        return
    layout = module.layouts[-1]
    rebuilt = len(module.layouts) - 1
    top = max(layout.bytes, default=0)
    canvas.line(
        (f"  {'buckets':<{LABEL}} ", "dim"),
        fmt.plural(len(layout.buckets), "bucket"),
        (_(", rebuilt {times}", times=fmt.plural(rebuilt, "time")) if rebuilt else "", "dim"),
    )
    digits = len(str(max(len(layout.buckets) - 1, 0)))
    for number, (params, size) in enumerate(zip(layout.buckets, layout.bytes, strict=False)):
        head = f"{'':<{LABEL + 3}}{number:>{digits}}  {fmt.size(size):>8} "
        y = canvas.line((head, ""), (fmt.bar(size / top if top else 0.0, 10), "synced"))
        layers = f" {fmt.plural(len(params), 'tensor')}: {layers_of(module, len(module.layouts) - 1, number)}"
        canvas.put(len(head) + 10, y, fmt.shorten(layers, canvas.width - len(head) - 11), "dim")


class JobView(Drawing):
    """The facts of the job."""

    EVERY = 0.5

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.tl, self.cursor or Cursor(), width, height)
