"""Test that a service collects garbage seldom, and not among its long-lived objects."""

import gc

from moorage.service.process import long_lived


def test_objects_of_the_start_are_frozen_and_collections_are_rare() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(700)
    try:
        with long_lived():
            assert not gc.isenabled()
            read: list[list[int]] = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(read)
        assert gc.get_threshold()[0] >= 10_000
    finally:
        gc.set_threshold(*before)
