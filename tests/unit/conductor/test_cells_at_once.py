"""Reads of several cells: how many are called at the same time."""

import threading
from collections.abc import Sequence

from conductor.super.cell_clients import concurrently


def test_dozens_of_silent_cells_are_waited_for_at_the_same_time() -> None:
    all_called = threading.Barrier(30)

    def silent(cell: str, _items: Sequence[int]) -> dict[str, bool]:
        all_called.wait(60)
        return {cell: True}

    cells = {f"cell{number}": [number] for number in range(30)}
    assert concurrently(silent, cells) == dict.fromkeys(cells, True)
