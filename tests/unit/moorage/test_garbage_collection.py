"""The garbage collector of a service looks neither often nor at what stays."""

import gc

from moorage.service.process import long_lived


def test_what_a_service_reads_at_its_start_is_left_alone_and_garbage_is_looked_for_seldom() -> None:
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
