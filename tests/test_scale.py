"""Many ranks through the real writer and reader, with 256 open files at most. Figures: `benchmarks/scale.py`."""

from __future__ import annotations

import pytest
from benchmarks.scale import measure


@pytest.mark.parametrize(("ranks", "passes"), [(8, 4_000), (64, 400), (1024, 16)])
def test_every_rank_of_a_wide_job_is_there(ranks: int, passes: int) -> None:
    told = measure(ranks, passes)
    assert (told["ranks_seen"], told["verdicts"], told["problems"]) == (ranks, passes, 0)
    assert "unsynced-step" in told["findings"]
    assert told["open_mib"] < 400
