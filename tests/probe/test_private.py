"""How a dynamo that cannot be told to leave a code object alone, as that of torch 2.4, is kept out of the probe."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

torch_private = pytest.importorskip("ddpviz.probe.torch_private", exc_type=ImportError)


def test_an_older_dynamo_is_off_while_a_body_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: list[types.CodeType] = []
    state = ["tracing"]

    def set_eval_frame(new: Any) -> Any:
        before, state[0] = state[0], new
        return before

    frames = types.SimpleNamespace(skip_code=skipped.append, set_eval_frame=set_eval_frame)
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", frames)  # type: ignore[arg-type]
    seen: list[Any] = []

    def body(fails: bool) -> None:
        seen.append(state[0])
        if fails:
            raise ValueError("the body's own")

    kernels = [[body]]
    monkeypatch.setattr(torch_private, "_kernels", kernels)
    monkeypatch.setattr(torch_private, "_kernels_around", [])
    wraps: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = []
    torch_private.skip_in_dynamo([], [body.__code__], wraps.append)
    assert body.__code__ in skipped
    for run in (kernels[0][0], wraps[0](body)):
        run(False)
        assert state == ["tracing"]
        with pytest.raises(ValueError, match="the body's own"):
            run(True)
        assert state == ["tracing"], "what was there before is there again"
        assert run.__code__ in skipped
    assert seen == [None] * 4
