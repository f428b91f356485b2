"""One self-contained HTML page of a run: verdict, timeline, norms, findings with their source lines, ranks, steps.

No script, no request to anywhere (a content policy in the page forbids both), light and dark by the reader's system.
Everything that came from a job is escaped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files

from ddpviz.export import words
from ddpviz.export.chart import norms
from ddpviz.export.source import source
from ddpviz.export.svg import STYLE, to_svg
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, current
from ddpviz.timeline import model as m
from ddpviz.timeline.trends import agreement, noise_scale, traffic
from ddpviz.trace.text import clean

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STEPS = 200  # rows of the steps' table; wrong ones come first


def to_html(tl: m.Timeline, findings: Sequence[Finding]) -> str:
    """The whole page."""
    title = text("ddpviz: " + (tl.run.title or tl.run.id or _("run")))
    css = files("ddpviz.export").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(_body(tl, sorted(findings, key=lambda f: -f.severity)))
    return (
        f'<!doctype html>\n<html lang="{current()}"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>\n{css}{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def text(value: object) -> str:
    """Text from a job, as HTML text: no escape sequences, no markup."""
    return escape(clean(str(value)))


def _body(tl: m.Timeline, findings: list[Finding]) -> Iterator[str]:
    yield from _head(tl, findings)
    yield from _numbers(tl)
    yield _heading(_("Sync timeline"))
    yield _dim(_("A row a rank, a cell a backward pass."))
    yield f'<div class="wide">{to_svg(tl)}</div>'
    yield _heading(_("Findings"))
    if not findings:
        none = _("None.")
        yield f'<p class="good">{text(none)}</p>'
    for finding in findings:
        yield from _finding(finding)
    for module in tl.modules:
        chart = norms(module)
        if chart:
            yield _heading(_("Gradient norms: {name}", name=words.module_name(tl, module)))
            yield _dim(_("Accumulated on each rank before averaging; a dot where it was averaged."))
            yield f'<div class="wide">{chart}</div>'
    yield from _ranks(tl)
    yield from _steps(tl)
    yield from _buckets(tl)
    if tl.run.notes:
        yield _heading(_("Notes")) + "<ul>" + "".join(f"<li>{text(note)}</li>" for note in tl.run.notes) + "</ul>"


def _head(tl: m.Timeline, findings: list[Finding]) -> Iterator[str]:
    run = tl.run
    counts = Counter(f.severity for f in findings)
    bad = counts[Severity.ERROR] or run.status in ("failed", "hung")
    style = "error" if bad else "warning" if counts[Severity.WARNING] or run.status != "finished" else "good"
    said = ", ".join(words.plural(counts[s], s.word) for s in (Severity.ERROR, Severity.WARNING) if counts[s])
    yield f"<h1>{text(run.title or run.id)}</h1>"
    status = words.run_word(run.status) + (f": {said}" if said else "")
    yield f'<p><span class="badge {style}">{text(status)}</span></p>'
    ranks = run.world_size or len(tl.ranks)
    facts = [
        words.plural(ranks, "rank"),
        f"{run.backend} ({run.backend_reason})" if run.backend_reason else run.backend,
        f"torch {run.torch}" if run.torch else "",
        f"ddpviz {run.ddpviz}" if run.ddpviz else "",
        _("exit code {code}", code=run.exit_code) if run.exit_code is not None else "",
        _("redirected to the CPU by --cpu") if run.redirected else "",
        _("norms sampled, budget {budget:g} %", budget=run.budget)
        if run.budget is not None
        else _("everything measured"),
    ]
    yield f'<p class="dim">{text(" · ".join(f for f in facts if f))}</p>'
    if run.command:
        yield f"<p><code>{text(' '.join(run.command))}</code></p>"


def _numbers(tl: m.Timeline) -> Iterator[str]:
    for module in tl.modules:
        if len(tl.modules) > 1:
            yield f'<p class="dim">{text(words.module_name(tl, module))}</p>'
        kinds = Counter(m.Sync(v) for v in module.verdicts.tolist())
        sent, saved = traffic(module)
        same, noise = agreement(module), noise_scale(module)
        facts = [
            (_("micro-steps"), f"{module.passes:,}"),
            (_("all-reduced"), f"{kinds[m.Sync.SYNCED]:,}"),
            (_("sent by a rank"), words.size(sent)),
            (_("saved by local passes"), words.size(saved)),
        ]
        if same is not None:
            facts.append((_("agreement of ranks"), words.number(same)))
        if noise is not None:
            facts.append((_("noise scale, in a rank's share"), words.number(noise)))
        steps = sum(any(part.module == module.id for part in step.parts) for step in tl.steps)
        facts.insert(2, (_("optimizer steps"), f"{steps:,}"))
        yield '<div class="numbers">'
        yield from (f'<div><span class="dim">{text(what)}</span><b>{text(value)}</b></div>' for what, value in facts)
        yield "</div>"


def _finding(finding: Finding) -> Iterator[str]:
    place = f' <span class="mono">{text(finding.file)}:{finding.line}</span>' if finding.file else ""
    times = f" ({words.plural(finding.count, 'time')})" if finding.count > 1 else ""
    yield f'<div class="card {finding.severity.word}">'
    yield f'<p class="head">{text(_(finding.severity.word))}: {text(finding.rule)}{text(times)}{place}</p>'
    yield f"<p>{text(finding.message)}</p>"
    lines = source(finding.file, finding.line, finding.code)
    if lines:
        width = len(str(lines[-1].number))
        shown = [f"{line.number:{width}} | {text(line.text) if line.text else ''}" for line in lines]
        marked = [f"<b>{row}</b>" if line.here else row for row, line in zip(shown, lines, strict=True)]
        yield "<pre>" + "\n".join(marked) + "</pre>"
    if finding.via:
        yield _dim(_("called through {via}", via=finding.via))
    if finding.advice:
        yield f'<p class="advice">→ {text(finding.advice)}</p>'
    yield "</div>"


def _ranks(tl: m.Timeline) -> Iterator[str]:
    ranks = sorted({*range(tl.run.world_size or 0), *tl.ranks})
    if not ranks:
        return
    yield _heading(_("Ranks"))
    if len(ranks) > 16:
        yield f"<details><summary>{text(words.plural(len(ranks), 'rank'))}</summary>"
    yield _header(_("rank"), _("host"), _("device"), _("status"), _("last event"), _("waiting for"))
    for rank in ranks:
        state = tl.ranks.get(rank) or m.RankState(rank)
        ended = words.rank_end(tl, rank)
        waits = words.waiting_for(tl, state) or ""
        row = [rank, state.host, state.device, ended, words.last_event(tl, rank), waits]
        yield "<tr>" + "".join(f"<td>{text(cell)}" for cell in row) + "</tr>"
    yield "</table>" + ("</details>" if len(ranks) > 16 else "")
    for rank in ranks:
        state = tl.ranks.get(rank) or m.RankState(rank)
        trace = state.exit.traceback if state.exit is not None else ""
        if trace:
            shown = escape(clean(trace, newlines=True))
            title = _("rank {rank}: traceback", rank=rank)
            yield f"<details open><summary>{text(title)}</summary><pre>{shown}</pre></details>"
        elif state.stack is not None:
            shown = "\n".join(text(frame) for frame in state.stack.frames)
            title = _("rank {rank}: stack, {doing}", rank=rank, doing=state.stack.doing)
            yield f"<details><summary>{text(title)}</summary><pre>{shown}</pre></details>"


def _steps(tl: m.Timeline) -> Iterator[str]:
    if not tl.steps:
        return
    wrong = [s for s in tl.steps if s.gradients is not m.Gradients.SYNCED or s.replicas is m.Replicas.DIVERGED]
    rest = tl.steps if len(tl.steps) <= STEPS else []
    rows = rest or wrong[:STEPS]
    yield _heading(_("Optimizer steps"))
    if not rest:
        yield _dim(_judged(len(wrong), len(tl.steps)))
    if not rows:
        return
    table = _("table")
    yield f"<details><summary>{text(table)}</summary>"
    yield _header(_("step"), _("after micro-step"), _("gradients"), _("replicas"), _("optimizer"), _("line"))
    for step in rows:
        after = sorted({a for part in step.parts for a in part.after if a is not None})
        cells = [
            step.index,
            words.ranges(after),
            _(step.gradients.word),
            _(step.replicas.word),
            step.optimizer,
            step.site.short,
        ]
        yield "<tr>" + "".join(f'<td class="n">{text(cell)}' for cell in cells) + "</tr>"
    yield "</table></details>"


def _judged(wrong: int, count: int) -> str:
    if not wrong:
        return _("All {steps} used averaged gradients.", steps=words.plural(count, "step"))
    fields = {"wrong": f"{wrong:,}", "steps": words.plural(count, "step"), "first": STEPS}
    if wrong > STEPS:
        return _(
            "{wrong} of {steps} did not use averaged gradients or left the replicas different; here are the first "
            "{first} of them.",
            **fields,
        )
    return _("{wrong} of {steps} did not use averaged gradients or left the replicas different.", **fields)


def _heading(title: str) -> str:
    return f"<h2>{text(title)}</h2>"


def _dim(said: str) -> str:
    return f'<p class="dim">{text(said)}</p>'


def _header(*names: str) -> str:
    return "<table><tr>" + "".join(f"<th>{text(name)}" for name in names) + "</tr>"


def _buckets(tl: m.Timeline) -> Iterator[str]:
    for module in tl.modules:
        if not module.layouts:
            continue
        layout = module.layouts[-1]
        yield _heading(_("Buckets: {name}", name=words.module_name(tl, module))) + "<details><summary>"
        yield f"{text(words.plural(len(layout.buckets), 'bucket'))}, {words.size(sum(layout.bytes))}</summary>"
        yield _header(_("bucket"), _("bytes"), _("parameters"))
        for index, size in enumerate(layout.bytes):
            names = words.bucket_layers(module, len(module.layouts) - 1, index, limit=40)
            yield f'<tr><td class="n">{index}<td class="n">{words.size(size)}<td>{text(names)}</tr>'
        yield "</table></details>"
