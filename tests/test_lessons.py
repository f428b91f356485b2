"""The lessons: plain short scripts; each shows the findings that it teaches and no other, and tells its own numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import ROOT, run_ddpviz
from recorded import NAMES, timeline
from synth import MISTAKES, RIGHT, cluster_of

from ddpviz.export.load import load
from ddpviz.findings import Finding, Severity, find
from ddpviz.headless.text import seen
from ddpviz.launch.demos import demo_scripts
from ddpviz.lessons import Lesson, catalogue, lesson, told
from ddpviz.timeline.model import Timeline

DEMOS = ROOT / "demos"
LESSONS = {one.name: one for one in catalogue()}
HANGS = ("rank-disagrees",)
RAISES = ("unused-parameters",)  # here the job goes on after it; that its finding is there, test_refusals says
# Of each lesson and of the variant beside it: what it must say at the end, from the run's own numbers.
SAID = {
    "last-one-syncs": r"4 of 5 micro-steps stayed local: a rank sent 220 B of gradients; .* 1\.10 kB",
    "accumulate": r"12 of 16 micro-steps stayed local: a rank sent 31\.9 kB .* 128 kB",
    "accumulate --no-sync off": r"All 16 micro-steps were all-reduced; a rank sent 128 kB",
    "bigger-batch": r"Peak memory of a rank: \d+ MB while.*has norm (\S+) in pieces and \1 in one piece",
    "accumulate-long": r"6 of 8 micro-steps stayed local.*Rank 1 came last to 2 of 2 all-reduces",
    "unsynced-step": r"rank 0 \S+, rank 1 \S+: not equal.*1 of 1 step used gradients that were never averaged.*Since",
    "unsynced-step --right": r": equal\..*1 of 1 step used the mean",
    "first-syncs": r"9 of 12 .*: not equal.*3 of 3 steps used gradients that were averaged too early",
    "first-syncs --right": r"9 of 12 .*: equal",
    "forward-outside": r"6 backwards ran inside no_sync\(\) and were all-reduced all the same: 1\.32 kB",
    "forward-outside --right": r"^6 of 8 micro-steps stayed local",
    "short-window": r"The steps used 4, 4, 6, 4 micro-steps, and the last 2 of the run reached no step",
    "short-window --right": r"The steps used 4, 4, 2, 4, 4, 2 micro-steps; none was left over",
    "unused-parameters": r"In micro-step 0 images\.weight, images\.bias got no gradient",
    "unused-parameters --right": r"In 6 of 6 micro-steps 2 of 6 parameters got no gradient",
    "rank-disagrees --right": r"8 of 12 micro-steps stayed local",
    "same-data": r"In 8 of 8 micro-steps .* 1\.00 times",
    "same-data --right": r"In 0 of 8 micro-steps",
    "nan-spreads": r"The first NaN was in \S+ on rank 1, in micro-step 2, .* 2 of 2 ranks had it",
    "nan-spreads --right": r"^6 of 6 steps used the mean",
    "uneven-join": r"rank 0 6, rank 1 8\. Ranks that were done answered 2 all-reduces",
    "buckets": r"LargeBuckets: 1 bucket, 0 % .* SmallBuckets: \d+ buckets",
    "fp16-hook": r"A rank handed 31\.9 kB .* fp16_compress_hook for 63\.8 kB of gradients: 50 %",
    "gan": r"Generator: 6 micro-steps all-reduced, 0 local\. Critic: 6 micro-steps all-reduced, 6 local",
}
QUICK = {"accumulate-long": ["--epochs", "1", "--pause", "0.01", "--slow-rank", "1"], "bigger-batch": ["--steps", "2"]}
BESIDE = {"redundant-sync"}  # `accumulate --no-sync off` is no mistake in its result, and still a waste


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """All of them as modules of one job."""
    folder = tmp_path_factory.mktemp("lessons") / "run"
    words = []
    for key in SAID:
        name, *arguments = key.split()
        words.append(":".join([name.replace("-", "_"), *arguments, *QUICK.get(name, [])]))
    script = str(ROOT / "tests" / "scripts" / "lessons.py")
    options = ["--backend", "gloo", "-n", "2", "--run-dir", str(folder)]
    done = run_ddpviz("check", *options, script, str(DEMOS), *words, limit=150)
    assert done.left == [], done.output
    assert "Expected to have finished reduction" in (folder / "logs" / "rank-0.log").read_text()
    return load(folder)


def parts(tl: Timeline) -> Iterator[tuple[str, Timeline, list[Finding]]]:
    """Each lesson's share of the job: its modules and steps, and what was found in its script."""
    found = find(tl)
    left = list(tl.modules)
    for key in SAID:
        file = key.split()[0].replace("-", "_") + ".py"
        count = {"gan": 2, "buckets": 2}.get(key, 1)
        mine, left = left[:count], left[count:]
        assert all(module.site.file.endswith(f"/{file}") for module in mine), (key, [m.site for m in mine])
        ids = {module.id for module in mine}
        steps = [step for step in tl.steps if any(part.module in ids for part in step.parts)]
        ranks = {
            k: replace(state, refused=[r for r in state.refused if r.module in ids]) for k, state in tl.ranks.items()
        }
        share = replace(tl, modules=mine, steps=steps, ranks=ranks)
        yield key, share, [f for f in found if f.module in ids and f.severity is not Severity.INFO]


@pytest.mark.timeout(240)
def test_each_shows_what_it_teaches_and_nothing_else(run: Timeline) -> None:
    wrong = {}
    for key, _, found in parts(run):
        wanted = set(LESSONS[key.split()[0]].teaches) if " " not in key else set()
        if key == "accumulate --no-sync off":
            wanted = BESIDE
        if {f.rule for f in found} != wanted and key not in RAISES:
            wrong[key] = sorted(f.rule for f in found)
    assert wrong == {}


@pytest.mark.timeout(240)
def test_each_tells_its_own_numbers(run: Timeline) -> None:
    wrong = {}
    for key, share, _ in parts(run):
        text = " ".join(told(LESSONS[key.split()[0]], share))
        if not re.search(SAID[key], text):
            wrong[key] = text
    assert wrong == {}


@pytest.mark.timeout(120)
def test_the_one_that_hangs_is_told_in_the_plain_output(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--backend", "gloo", "-n", "2", "--hang-after", "2", "--run-dir", str(folder)]
    done = run_ddpviz("check", *options, str(DEMOS / "rank_disagrees.py"), limit=100)
    assert done.code == 3, done.output
    tl = load(folder)
    one = lesson("rank-disagrees")
    assert one is not None
    assert {f.rule for f in find(tl) if f.severity is not Severity.INFO} == set(one.teaches)
    tl.run.lesson = one.name
    text = list(seen(tl))
    assert text[0] == f"What was seen: {one.title}"
    assert re.search(r"In 5 micro-steps, first in micro-step 2, some ranks all-reduced and others did not", text[1])
    assert re.search(r"rank 0 in all-reduce.*; rank 1 in barrier", text[2])


def test_scripts_and_stories_belong_together() -> None:
    scripts = {demo.name: demo for demo in demo_scripts()}
    assert scripts.keys() == LESSONS.keys()
    assert {key.split()[0] for key in SAID} | set(HANGS) == LESSONS.keys()
    for one in LESSONS.values():
        assert one.title
        assert one.look
        assert one.seen
        assert len(scripts[one.name].summary) < 120


@pytest.mark.parametrize("one", LESSONS.values(), ids=lambda one: one.name)
def test_a_lesson_is_a_short_plain_script(one: Lesson) -> None:
    text = (DEMOS / f"{one.name.replace('-', '_')}.py").read_text("utf-8")
    assert len(text.splitlines()) < 60
    assert "ddpviz" not in text
    assert text.rstrip().endswith("dist.barrier()\ndist.destroy_process_group()")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    options = [a.value for c in calls if ast.unparse(c.func) == "parser.add_argument" for a in c.args[:1]]
    for knob in one.knobs:
        assert knob.option in options
        assert knob.live is False or len(re.findall(rf"args\.{knob.name}\b", text.split("\nfor ", 1)[1])) > 0
    assert all(word in options for word in one.other if word.startswith("--"))


def test_facts_of_any_run_are_sentences_or_nothing() -> None:
    """Lessons are told of whatever the run became: no fact fails on a run that is not as it was meant."""
    for tl in [*(timeline(name) for name in NAMES), *(cluster_of(kind).timeline() for kind in MISTAKES + RIGHT)]:
        for one in LESSONS.values():
            for fact in one.seen:
                sentence = fact(tl)
                assert sentence == "" or sentence.endswith(".")


def test_a_run_that_is_no_lesson_tells_none() -> None:
    assert list(seen(timeline("accumulate"))) == []
    assert lesson("") is None
