"""The rules about optimizer steps and replicas, from both sides, on simulated jobs."""

from __future__ import annotations

import pytest
from judging import one, rules, run
from simcluster import Net, Rank, Steps

from ddpviz.findings import find
from ddpviz.timeline.model import Gradients
from ddpviz.trace import records as r


def test_unsynced_step_says_why() -> None:
    def forward_only(me: Rank) -> Steps:
        for _ in range(2):
            yield from me.backward(False, no_sync_forward=True, no_sync_backward=False)
            me.step()
            me.clear()

    tl = run(forward_only)
    assert "the forward decides" in one(tl, "unsynced-step").message
    assert "no-sync-split" in rules(tl)

    def bypass(me: Rank) -> Steps:
        for _ in range(2):
            yield from me.backward(False, forward=False, no_sync_forward=False, no_sync_backward=False)
            me.step()
            me.clear()

    tl = run(bypass)
    assert "around its wrapper" in one(tl, "unsynced-step").message
    assert one(tl, "ddp-bypassed").count == 2


def test_armed_by_hand_is_no_split() -> None:
    """All forwards under no_sync; the last backward of each window is all-reduced all the same."""

    def train(me: Rank) -> Steps:
        for i in range(6):
            yield from me.backward(i % 3 == 2, no_sync_forward=True, no_sync_backward=i % 3 != 2)
            if i % 3 == 2:
                me.step()
                me.clear()

    assert rules(run(train)) == set()


def test_backward_alone_in_no_sync() -> None:
    def train(me: Rank) -> Steps:
        for i in range(4):
            yield from me.backward(True, no_sync_forward=False, no_sync_backward=i % 2 == 0)
            if i % 2:
                me.step()
                me.clear()

    tl = run(train)
    assert rules(tl) == {"no-sync-split", "redundant-sync"}
    assert one(tl, "no-sync-split").backwards == (0, 2)
    assert "forward inside the context too" in one(tl, "redundant-sync").advice


def test_a_forward_for_a_metric_armed_the_reducer() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(2):
            me.say(r.Unanswered(0, me.states[0].index - 1, me.tick(1), me.site("forward")))
            yield from me.backward(True, no_sync_forward=False, no_sync_backward=True)
            me.step()
            me.clear()

    assert "armed the reducer" in one(run(train), "no-sync-split").message


def test_equal_replicas_do_not_save_an_unsynced_step() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(3):
            yield from me.backward(False, same_data=True)
            me.step()
            me.clear()

    tl = run(train)
    assert rules(tl) == {"unsynced-step", "identical-batches"}
    assert "every rank computed the same" in one(tl, "unsynced-step").message


def test_gradients_made_equal_by_something_unseen() -> None:
    """Another library averages: no collective is seen, yet unequal gradients are bit-equal at the step."""

    def train(me: Rank) -> Steps:
        for _ in range(3):
            yield from me.backward(False)
            seen = me.states[0]
            yield from me.all_reduce_gradients()
            seen.by_hand = 0
            me.step()
            me.clear()

    tl = run(train)
    for group in tl.groups.values():
        group.collectives.clear()
    lane = tl.modules[0].lanes[0]
    assert set(lane.gradients.tolist()) == {int(Gradients.LOCAL)}
    assert rules(tl) == set()


def test_local_sgd_that_does_not_end_equal_is_an_error() -> None:
    def train(me: Rank) -> Steps:
        for i in range(4):
            yield from me.backward(False)
            me.step()
            me.clear()
            if i == 1:
                yield from me.average_parameters()

    tl = run(train)
    assert rules(tl) == {"unsynced-step", "replicas-diverged"}
    assert "do not end equal" in one(tl, "unsynced-step").message


def test_first_divergence_alone_is_blamed() -> None:
    def train(me: Rank) -> Steps:
        for i in range(6):
            yield from me.backward(i != 2)
            me.step()
            me.clear()

    tl = run(train)
    assert one(tl, "unsynced-step").steps == (2,)
    diverged = one(tl, "replicas-diverged")
    assert (diverged.step, diverged.count) == (2, 4)
    assert "see unsynced-step" in diverged.message


def test_learning_rates_that_differ_are_named() -> None:
    def train(me: Rank) -> Steps:
        me.say(r.Learning(0, [0.3], 0))
        for i in range(4):
            yield from me.backward()
            rate = 0.03 if me.rank and i >= 2 else 0.3
            if me.rank and i == 2:
                me.say(r.Learning(0, [0.03], i))
            me.step(rate=rate)
            me.clear()

    diverged = one(run(train), "replicas-diverged")
    assert diverged.step == 2
    assert "0.3 on rank 0 and 0.03 on rank 1" in diverged.message


def test_a_step_skipped_by_one_rank() -> None:
    def train(me: Rank) -> Steps:
        for i in range(4):
            yield from me.backward()
            if not (me.rank == 1 and i == 1):
                me.step()
            me.clear()

    diverged = one(run(train), "replicas-diverged")
    assert (diverged.ranks, diverged.step, diverged.backward, diverged.count) == ((1,), 1, 1, 2)
    assert "Rank 0 took the step after micro-step 1 and rank 1 did not." in diverged.message
    assert "They stayed different in 2 later measured steps." in diverged.message


@pytest.mark.parametrize(("out", "again"), [(3, False), (1, True)])
def test_a_left_out_step_that_is_the_last_or_made_good_later(out: int, again: bool) -> None:
    def train(me: Rank) -> Steps:
        start = [w.copy() for w in me.states[0].weights]
        for i in range(4):
            yield from me.backward()
            if not (me.rank == 1 and i == out):
                me.step()
            me.clear()
            if again and i == 2:
                me.states[0].weights = [w.copy() for w in start]  # a checkpoint is loaded everywhere
        me.say(r.Replica(0, me.steps - 1, 7 if again else me.rank, me.tick(1), final=True))

    diverged = one(run(train), "replicas-diverged")
    assert (diverged.ranks, diverged.step) == ((1,), out)
    assert ("They were equal again after step 3." in diverged.message) is again


def test_grad_scaler_that_skipped_on_one_rank_alone() -> None:
    def train(me: Rank) -> Steps:
        for i in range(4):
            yield from me.backward()
            me.step(skipped=me.rank == 1 and i == 1)
            me.clear()

    diverged = one(run(train), "replicas-diverged")
    assert (diverged.ranks, diverged.step) == ((1,), 1)
    assert "GradScaler skipped it there" in diverged.message


def test_what_follows_a_left_out_step_is_judged_by_itself() -> None:
    """The second module's steps have other numbers on rank 1, and are compared all the same."""

    def train(me: Rank) -> Steps:
        for i in range(3):
            yield from me.backward()
            if not (me.rank == 1 and i == 1):
                me.step()
            me.clear()
        for _ in range(3):
            yield from me.backward(module=1)
            grads = me.states[1].grads
            me.states[1].grads = [None if g is None else g * (1 + me.rank) for g in grads]
            me.step(1)
            me.clear(1)

    tl = run(train, nets=[Net(), Net(name="Second")])
    changed = one(tl, "gradients-changed-after-sync")
    assert (changed.module, changed.step, changed.count) == (1, 3, 3)
    second = next(f for f in find(tl) if f.rule == "replicas-diverged" and f.module == 1)
    assert (second.step, second.ranks) == (3, (0, 1))


def test_settings_of_the_optimizer_that_differ_are_named() -> None:
    def train(me: Rank) -> Steps:
        me.say(r.Learning(0, [0.3], 0, {"momentum": [0.8 + me.rank / 10], "weight_decay": [0.1]}))
        for _ in range(3):
            yield from me.backward()
            me.step(rate=0.3 + me.rank)
            me.clear()

    diverged = one(run(train), "replicas-diverged")
    assert "the optimizer's momentum is what differs: 0.8 on rank 0 and 0.9 on rank 1" in diverged.message


@pytest.mark.parametrize(("ranks", "odd"), [(2, (0, 1)), (3, (1,)), (5, (1,))])
def test_the_odd_one_is_named_where_there_is_a_majority(ranks: int, odd: tuple[int, ...]) -> None:
    def train(me: Rank) -> Steps:
        for i in range(3):
            yield from me.backward()
            if (me.rank, i) == (1, 2):
                me.states[0].weights = [w + 0.1 for w in me.states[0].weights]
            me.step()
            me.clear()

    diverged = one(run(train, ranks=ranks), "replicas-diverged")
    assert (diverged.ranks, diverged.step) == (odd, 2)
    assert ("are still alike, rank 1 not" in diverged.message) is (len(odd) == 1)


def test_a_rank_that_steps_without_gradients() -> None:
    def train(me: Rank) -> Steps:
        for i in range(3):
            yield from me.backward()
            if me.rank == 1 and i == 1:
                me.clear()
            me.step()
            me.clear()

    diverged = one(run(train), "replicas-diverged")
    assert diverged.step == 1
    assert "Rank 1 took it without any gradient" in diverged.message


def test_gradients_changed_after_the_all_reduce() -> None:
    def train(me: Rank) -> Steps:
        for _ in range(2):
            yield from me.backward()
            grads = me.states[0].grads
            me.states[0].grads = [None if g is None else g * (1 + me.rank) for g in grads]
            me.step()
            me.clear()

    tl = run(train)
    assert rules(tl) == {"gradients-changed-after-sync", "replicas-diverged"}
    assert "norm" in one(tl, "gradients-changed-after-sync").message
