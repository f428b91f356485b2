"""The pytest plugin: one fixture. Loaded in every pytest session where ddpviz is installed, so it imports nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ddpviz.headless.testing import Checked


@pytest.fixture
def ddpviz_check(tmp_path: Path) -> Callable[..., Checked]:
    """`ddpviz.check` with its recordings in the test's `tmp_path`; see there for the arguments."""
    calls = 0

    def call(*args: Any, **options: Any) -> Checked:
        nonlocal calls
        from ddpviz.headless.testing import check

        calls += 1
        options.setdefault("run_dir", tmp_path / f"ddpviz-{calls}")
        return check(*args, **options)

    return call
