"""PyTorch's obscure errors of this field, by their text. Data for the rule torch-refused.

Each pattern is taken from text that PyTorch really raised: all on 2.13.0 and 2.14.1 with gloo on a CPU unless a
comment says otherwise; the tests provoke them again. `explained.py` says what they mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ddpviz.findings import explained
from ddpviz.findings.explained import Case
from ddpviz.timeline.model import RankState

Explain = Callable[[Case], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Refusal:
    kind: str
    pattern: re.Pattern[str]
    explain: Explain
    crash: bool = False  # no exception: the process died
    rank_of_words: int = 0  # of several kinds of text for one cause, the lowest tells most

    def crashed(self, state: RankState) -> bool:
        """TORCH_DISTRIBUTED_DEBUG=DETAIL with gloo ends in a segmentation fault while DDP is built."""
        died = state.signal == 11 or state.exit_code in (-11, 139)
        return self.crash and died and state.debug.upper() == "DETAIL" and "gloo" in state.backend


def _re(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "static-unused",
        _re(r"Expected to have finished reduction in the prior iteration.*?your training graph has changed"),
        explained.static_unused,
    ),
    Refusal("unused", _re(r"Expected to have finished reduction in the prior iteration"), explained.unused),
    Refusal("static-changed", _re(r"Your training graph has changed in this iteration"), explained.static_changed),
    Refusal(
        "twice",
        _re(
            r"Expected to mark a variable ready only once(?:.*?Parameter at index (?P<index>\d+)"
            r"(?: with name (?P<name>\S+))? has been marked as ready twice)?"
        ),
        explained.twice,
    ),
    Refusal("static-no-sync", _re(r"expect_autograd_hooks_ INTERNAL ASSERT FAILED"), explained.static_no_sync),
    Refusal(
        "models",
        _re(r"Rank (?P<a>\d+) has (?P<n>\d+) params, while rank (?P<b>\d+) has inconsistent (?P<m>\d+) params"),
        explained.count,
    ),
    Refusal(
        "models",
        _re(r"\[(?P<a>\d+)\]: params\[(?P<index>\d+)\] in this process with sizes \[(?P<sizes>[\d, ]*)\]"),
        explained.shape,
    ),
    Refusal("monitored", _re(r"Rank (?P<who>\d+) failed to pass monitoredBarrier"), explained.monitored),
    Refusal(
        "monitored",
        _re(r"successfully reached monitoredBarrier, but received errors"),
        explained.monitored_peer,
        rank_of_words=1,
    ),
    # NCCL: the text in libtorch_cuda 2.14.1, and public reports; not run here for want of two GPUs
    Refusal(
        "timeout",
        _re(r"Watchdog caught collective operation timeout: .*?OpType=(?P<op>\w+).*?ran for (?P<ms>\d+) milliseconds"),
        explained.watchdog,
    ),
    Refusal(
        "timeout", _re(r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send) operation to complete"), explained.timeout
    ),
    Refusal("mismatch", _re(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<want>\d+)"), explained.mismatch),
    # NCCL: public reports of NCCL 2.17 to 2.21; not run here for want of a GPU
    Refusal(
        "duplicate",
        _re(r"Duplicate GPU detected : rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device"),
        explained.duplicate,
    ),
    Refusal(
        "nccl", _re(r"ProcessGroupNCCL is only supported with GPUs"), explained.nccl_missing
    ),  # CUDA builds: 2.14.1
    Refusal(
        "nccl", _re(r"Distributed package doesn't have NCCL built in"), explained.nccl_missing
    ),  # CPU builds: 2.13.0
    Refusal("no-group", _re(r"Default process group has not been initialized"), explained.no_group),
    Refusal("no-env", _re(r"environment variable (?P<name>\w+) expected, but not set"), explained.no_env),
    Refusal(
        "clients",
        _re(r"Timed out after \d+ seconds waiting for clients\. (?P<there>\d+)/(?P<all>\d+) clients joined"),
        explained.clients,
    ),
    Refusal(
        "clients",
        _re(r"client socket has timed out after \d+ms while trying to connect to \((?P<host>[^)]*)\)"),
        explained.no_host,
    ),
    Refusal("hook", _re(r"register_comm_hook or register_builtin_comm_hook can only be called once"), explained.hook),
    Refusal(
        "frozen",
        _re(r"DistributedDataParallel is not needed when a module doesn't have any parameter"),
        explained.frozen,
    ),
    Refusal(
        "devices",
        _re(r"DistributedDataParallel device_ids and output_device arguments only work with"),
        explained.devices,
    ),
    Refusal("detail", _re(r"(?!)"), explained.detail, crash=True),
)
