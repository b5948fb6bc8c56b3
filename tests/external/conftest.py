"""The order of these tests."""

from collections.abc import Sequence

import pytest

#: What takes longest comes first: begun last, it would go on alone while the other workers had nothing left to do. A
#: worker also takes over what another one has not begun, the last of it first, and what these tests share is dear.
FIRST: Sequence[str] = ("test_killed_processes.py",)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)
