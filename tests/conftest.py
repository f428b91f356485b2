"""The order of the tests: the longest files first, so that neither worker ends up alone with one of them."""

from __future__ import annotations

import pytest

LONGEST = ("transparency/test_watched", "transparency/test_by_hand", "test_findings_real", "test_refusals", "test_hang")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((i for i, part in enumerate(LONGEST) if part in path), len(LONGEST))

    items.sort(key=place)
