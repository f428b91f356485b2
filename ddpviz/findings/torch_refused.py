"""torch-refused: PyTorch itself raised one of its obscure DDP errors, explained in plain words.

Measured: what a DDP constructor, forward or backward raised, in PyTorch's own words, or the exception that ended the
rank, with the parameters that had received no gradient by then.

Fires for the errors in `refusals.py`, once for each kind, unless the script caught the error and finished well.

Does not fire for any other exception, however it may be raised: nothing is explained that was not seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import words
from ddpviz.findings.explained import Case
from ddpviz.findings.model import Finding, Severity
from ddpviz.findings.refusals import REFUSALS, Refusal
from ddpviz.language import _
from ddpviz.timeline.model import RankState, Timeline
from ddpviz.trace import records as r


def check(tl: Timeline) -> Iterator[Finding]:
    found: dict[str, list[tuple[Refusal, Case]]] = {}
    for state in tl.ranks.values():
        for refusal, case in _of(tl, state):
            found.setdefault(refusal.kind, []).append((refusal, case))
    for cases in found.values():
        cases.sort(key=lambda c: (c[0].rank_of_words, c[1].rank))
        refusal, case = cases[0]
        ranks = tuple(sorted({c.rank for _rest, c in cases}))
        here = tuple(sorted({c.rank for _rest, c in cases if _place(tl, c) == _place(tl, case)}))
        message, advice = refusal.explain(case)
        message += _other_names(cases) + _other_places(tl, cases)
        site = tl.site(case.rank, case.site)
        said = case.message.strip().splitlines()[0] if case.message.strip() else ""
        said = said if len(said) <= 160 else said[:157].rsplit(" ", 1)[0] + " ..."
        who = {"ranks": words.start(words.ranks(ranks, tuple(tl.ranks))), "at": words.at(site), "message": message}
        if refusal.crash:
            message = _("{ranks} crashed{at}: {message}", **who)
        elif case.where:
            who["ranks"] = words.ranks(here, tuple(tl.ranks))
            message = _("PyTorch raised in the {where} on {ranks}{at}: {message}", where=case.where, **who)
        else:
            who["ranks"] = words.ranks(here, tuple(tl.ranks))
            message = _("PyTorch raised on {ranks}{at}: {message}", **who)
        yield Finding(
            "torch-refused",
            Severity.ERROR,
            message + (_(' (PyTorch says: "{said}")', said=said) if said else ""),
            advice,
            module=case.module.id if case.module is not None else None,
            ranks=ranks,
            count=len(ranks),
            backward=case.pass_index if case.pass_index >= 0 else None,
            file=site.file,
            line=site.line,
            code=site.code,
            via=site.via,
        )


def _other_names(cases: list[tuple[Refusal, Case]]) -> str:
    """The parameters without a gradient on ranks where they are not those of the first."""
    first = cases[0][1].ungraded()
    others = [c for refusal, c in cases[1:] if refusal.kind == "unused" and c.ungraded() and c.ungraded() != first]
    return "".join(_(" On rank {rank} it left {names}.", rank=c.rank, names=c.names(c.ungraded())) for c in others[:3])


def _other_places(tl: Timeline, cases: list[tuple[Refusal, Case]]) -> str:
    """Where the others raised, if that was elsewhere."""
    first = _place(tl, cases[0][1])
    others = [(c.rank, tl.site(c.rank, c.site)) for _rest, c in cases[1:] if _place(tl, c) != first]
    return "".join(_(" Rank {rank} raised it at {place}.", rank=k, place=at.short) for k, at in others[:3] if at.file)


def _place(tl: Timeline, case: Case) -> tuple[str, int]:
    site = tl.site(case.rank, case.site)
    return site.file, site.line


def explained(tl: Timeline, state: RankState) -> bool:
    """Whether this rank ended with an error that this rule explains."""
    return any(True for _rest in _of(tl, state))


def _of(tl: Timeline, state: RankState) -> Iterator[tuple[Refusal, Case]]:
    ended_well = state.exit is not None and state.status == "finished"
    if ended_well and tl.run.status == "finished":
        return
    seen = set()
    for record in state.refused:
        where = {
            "constructor": _("constructor of DistributedDataParallel"),
            "init_process_group": _("process group's set-up"),
        }
        case = _case(tl, state, record.message, where.get(record.where, record.where), record)
        for refusal in REFUSALS:
            if (match := refusal.pattern.search(record.message)) is not None:
                seen.add(refusal.kind)
                yield refusal, case.with_match(match)
                break
    error = state.exit.error if state.exit is not None else state.said
    for refusal in REFUSALS:
        if refusal.crash:
            if refusal.crashed(state) and refusal.kind not in seen:
                yield refusal, _case(tl, state, "", "", None)
        elif error and (match := refusal.pattern.search(error)) is not None:
            if refusal.kind not in seen and not seen:
                yield refusal, _case(tl, state, error, "", None).with_match(match)
            break


def _case(tl: Timeline, state: RankState, message: str, where: str, record: r.Refused | None) -> Case:
    number = record.module if record is not None else -1
    module = tl.modules[number] if 0 <= number < len(tl.modules) else None
    if module is None and len(tl.modules) == 1:
        module = tl.modules[0]
    site = record.site if record is not None else state.exit.site if state.exit is not None else 0
    index = record.pass_index if record is not None else -1
    missing = tuple(record.params) if record is not None else ()
    return Case(tl, state, module, message, where, site, index, missing)
