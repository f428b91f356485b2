"""The suite reads English, whatever the machine's locale and the user's settings say; its longest files come first, so
that neither worker ends up alone with one of them."""

from __future__ import annotations

import os

import pytest

os.environ["LC_ALL"] = "C.UTF-8"

# beside the job that never waits, jobs that wait most of the time
LONGEST = (
    "transparency/test_watched", "test_hang", "launchers/", "test_headless", "test_deaths", "oracle/", "test_refusals",
    "test_findings_real", "probe/", "transparency/test_by_hand",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((i for i, part in enumerate(LONGEST) if part in path), len(LONGEST))

    items.sort(key=place)
