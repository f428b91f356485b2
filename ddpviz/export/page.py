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
from ddpviz.timeline import model as m
from ddpviz.timeline.trends import agreement, noise_scale, traffic
from ddpviz.trace.text import clean

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STEPS = 200  # rows of the steps' table; wrong ones come first


def to_html(tl: m.Timeline, findings: Sequence[Finding]) -> str:
    """The whole page."""
    title = text(f"ddpviz: {tl.run.title or tl.run.id or 'run'}")
    css = files("ddpviz.export").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(_body(tl, sorted(findings, key=lambda f: -f.severity)))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
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
    yield "<h2>Sync timeline</h2>"
    yield '<p class="dim">A row a rank, a cell a backward pass.</p>'
    yield f'<div class="wide">{to_svg(tl)}</div>'
    yield "<h2>Findings</h2>"
    if not findings:
        yield '<p class="good">None.</p>'
    for finding in findings:
        yield from _finding(finding)
    for module in tl.modules:
        chart = norms(module)
        if chart:
            yield f"<h2>Gradient norms: {text(words.module_name(tl, module))}</h2>"
            yield '<p class="dim">Accumulated on each rank before averaging; a dot where it was averaged.</p>'
            yield f'<div class="wide">{chart}</div>'
    yield from _ranks(tl)
    yield from _steps(tl)
    yield from _buckets(tl)
    if tl.run.notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{text(note)}</li>" for note in tl.run.notes) + "</ul>"


def _head(tl: m.Timeline, findings: list[Finding]) -> Iterator[str]:
    run = tl.run
    counts = Counter(f.severity for f in findings)
    bad = counts[Severity.ERROR] or run.status in ("failed", "hung")
    style = "error" if bad else "warning" if counts[Severity.WARNING] or run.status != "finished" else "good"
    said = ", ".join(words.plural(counts[s], s.word) for s in (Severity.ERROR, Severity.WARNING) if counts[s])
    yield f"<h1>{text(run.title or run.id)}</h1>"
    yield f'<p><span class="badge {style}">{text(run.status)}{": " + said if said else ""}</span></p>'
    ranks = run.world_size or len(tl.ranks)
    facts = [
        words.plural(ranks, "rank"),
        f"{run.backend} ({run.backend_reason})" if run.backend_reason else run.backend,
        f"torch {run.torch}" if run.torch else "",
        f"ddpviz {run.ddpviz}" if run.ddpviz else "",
        f"exit code {run.exit_code}" if run.exit_code is not None else "",
        "redirected to the CPU by --cpu" if run.redirected else "",
        f"norms sampled, budget {run.budget:g} %" if run.budget is not None else "everything measured",
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
            ("micro-steps", f"{module.passes:,}"),
            ("all-reduced", f"{kinds[m.Sync.SYNCED]:,}"),
            ("sent by a rank", words.size(sent)),
            ("saved by local passes", words.size(saved)),
        ]
        if same is not None:
            facts.append(("agreement of ranks", words.number(same)))
        if noise is not None:
            facts.append(("noise scale, in a rank's share", words.number(noise)))
        steps = sum(any(part.module == module.id for part in step.parts) for step in tl.steps)
        facts.insert(2, ("optimizer steps", f"{steps:,}"))
        yield '<div class="numbers">'
        yield from (f'<div><span class="dim">{text(what)}</span><b>{text(value)}</b></div>' for what, value in facts)
        yield "</div>"


def _finding(finding: Finding) -> Iterator[str]:
    place = f' <span class="mono">{text(finding.file)}:{finding.line}</span>' if finding.file else ""
    times = f" ({finding.count:,} times)" if finding.count > 1 else ""
    yield f'<div class="card {finding.severity.word}">'
    yield f'<p class="head">{finding.severity.word}: {text(finding.rule)}{times}{place}</p>'
    yield f"<p>{text(finding.message)}</p>"
    lines = source(finding.file, finding.line, finding.code)
    if lines:
        width = len(str(lines[-1].number))
        shown = [f"{line.number:{width}} | {text(line.text) if line.text else ''}" for line in lines]
        marked = [f"<b>{row}</b>" if line.here else row for row, line in zip(shown, lines, strict=True)]
        yield "<pre>" + "\n".join(marked) + "</pre>"
    if finding.via:
        yield f'<p class="dim">called through {text(finding.via)}</p>'
    if finding.advice:
        yield f'<p class="advice">→ {text(finding.advice)}</p>'
    yield "</div>"


def _ranks(tl: m.Timeline) -> Iterator[str]:
    ranks = sorted({*range(tl.run.world_size or 0), *tl.ranks})
    if not ranks:
        return
    yield "<h2>Ranks</h2>"
    if len(ranks) > 16:
        yield f"<details><summary>{len(ranks)} ranks</summary>"
    yield "<table><tr><th>rank<th>host<th>device<th>status<th>last event<th>waiting for</tr>"
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
            yield f"<details open><summary>rank {rank}: traceback</summary><pre>{shown}</pre></details>"
        elif state.stack is not None:
            shown = "\n".join(text(frame) for frame in state.stack.frames)
            yield f"<details><summary>rank {rank}: stack, {text(state.stack.doing)}</summary>"
            yield f"<pre>{shown}</pre></details>"


def _steps(tl: m.Timeline) -> Iterator[str]:
    if not tl.steps:
        return
    wrong = [s for s in tl.steps if s.gradients is not m.Gradients.SYNCED or s.replicas is m.Replicas.DIVERGED]
    rest = tl.steps if len(tl.steps) <= STEPS else []
    rows = rest or wrong[:STEPS]
    yield "<h2>Optimizer steps</h2>"
    if not rest:
        some = f"; here are the first {STEPS} of them" if len(wrong) > STEPS else ""
        told = (
            f"{len(wrong):,} of {len(tl.steps):,} did not use averaged gradients or left the replicas different{some}"
        )
        yield f'<p class="dim">{told if wrong else f"all {len(tl.steps):,} used averaged gradients"}.</p>'
    if not rows:
        return
    yield "<details><summary>table</summary><table>"
    yield "<tr><th>step<th>after micro-step<th>gradients<th>replicas<th>optimizer<th>line</tr>"
    for step in rows:
        after = sorted({a for part in step.parts for a in part.after if a is not None})
        cells = [
            step.index,
            words.ranges(after),
            step.gradients.word,
            step.replicas.word,
            step.optimizer,
            step.site.short,
        ]
        yield "<tr>" + "".join(f'<td class="n">{text(cell)}' for cell in cells) + "</tr>"
    yield "</table></details>"


def _buckets(tl: m.Timeline) -> Iterator[str]:
    for module in tl.modules:
        if not module.layouts:
            continue
        layout = module.layouts[-1]
        yield f"<h2>Buckets: {text(words.module_name(tl, module))}</h2><details><summary>"
        yield f"{words.plural(len(layout.buckets), 'bucket')}, {words.size(sum(layout.bytes))}</summary>"
        yield "<table><tr><th>bucket<th>bytes<th>parameters</tr>"
        for index, size in enumerate(layout.bytes):
            names = words.bucket_layers(module, len(module.layouts) - 1, index, limit=40)
            yield f'<tr><td class="n">{index}<td class="n">{words.size(size)}<td>{text(names)}</tr>'
        yield "</table></details>"
