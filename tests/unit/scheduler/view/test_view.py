"""Test the host view: snapshots never change, and the host cache shows reads and claims exactly once."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.scheduler.builders import CELLS, allocation_request, host_cache, host_row, provider

from moorage.testing.builders import inventory
from scheduler.view.column import Column
from scheduler.view.planned import PlannedView
from scheduler.view.provider_trees import FetchedProvider
from scheduler.view.provisional import AddedClaims, Versions
from scheduler.view.snapshot import Snapshot

RESOURCES = {"VCPU": 2, "MEMORY_MB": 2048}


def used(snapshot: Snapshot, resource_class: str = "VCPU") -> list[float]:
    found: list[float] = snapshot.used(resource_class).tolist()
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "grow", "cut", "freeze"]), st.integers(0, 40), st.integers()), max_size=60
    )
)
def test_a_frozen_column_never_changes(steps: list[tuple[str, int, int]]) -> None:
    column = Column(np.int64, 7)
    truth: list[int] = []
    frozen: list[tuple[np.ndarray[tuple[int, ...], np.dtype[np.int64]], list[int]]] = []
    for step, number, value in steps:
        if step == "put" and truth:
            column[number % len(truth)] = truth[number % len(truth)] = value % 1000
        elif step == "grow":
            truth += [7] * number
            column.resize(len(truth))
        elif step == "cut":
            del truth[number:]
            column.resize(len(truth))
        elif step == "freeze":
            frozen.append((column.frozen(), list(truth)))
        assert [column[row] for row in range(len(column))] == truth
    for array, content in frozen:
        assert array.tolist() == content
        assert not array.flags.writeable


def test_a_column_is_copied_at_most_once_while_rows_are_cut_off_one_by_one() -> None:
    column = Column(np.int64, 7)
    column.resize(1000)
    column.frozen()
    buffers = [column._buffer]
    for length in range(999, 900, -1):
        column.resize(length)
        if column._buffer is not buffers[-1]:
            buffers.append(column._buffer)
    assert len(buffers) == 2


def test_a_host_shows_what_its_provider_has_whichever_was_read_first() -> None:
    host = host_row(1)
    first = host_cache([host], [])
    assert not first.snapshot().fits("VCPU", 1).any()
    first.update(providers=[provider(host, VCPU=inventory(8, used=3))])
    second = host_cache([], [provider(host, VCPU=inventory(8, used=3))])
    second.update(hosts=[host])
    for shown in (first, second):
        assert shown.snapshot().host(0).inventories == {"VCPU": [inventory(8, used=3)]}
        assert shown.snapshot().free("VCPU").tolist() == [5.0]


def test_a_cell_and_a_zone_are_forgotten_with_their_last_host_and_earlier_snapshots_keep_them() -> None:
    hosts = [host_row(1), host_row(2, cell_uuid=CELLS[1], availability_zone="west"), host_row(3)]
    shown = host_cache(hosts)
    before = shown.snapshot()
    assert (set(before.cells), set(before.zones)) == (set(CELLS), {"nova", "west"})
    shown.update(gone_hosts=[2])
    without = shown.snapshot()
    assert (set(without.cells), set(without.zones)) == ({CELLS[0]}, {"nova"})
    assert not without.in_cell(CELLS[1]).any()
    assert without.in_cell(CELLS[0]).tolist() == [True, True]
    # Into another zone, and back into the cell that was forgotten.
    shown.update(hosts=[host_row(1, availability_zone="east"), host_row(3, cell_uuid=CELLS[1])])
    after = shown.snapshot()
    assert (set(after.cells), set(after.zones)) == (set(CELLS), {"east", "nova"})
    assert (after.in_cell(CELLS[0]).tolist(), after.in_cell(CELLS[1]).tolist()) == ([True, False], [False, True])
    assert before.in_cell(CELLS[1]).tolist() == before.in_zone("west").tolist() == [False, True, False]
    assert before.in_zone("east").tolist() == [False] * 3


def test_a_snapshot_stays_unchanged_while_the_host_cache_changes() -> None:
    hosts = [host_row(number) for number in range(3)]
    shown = host_cache(hosts)
    before = shown.snapshot()
    assert shown.snapshot() is before
    shown.apply_claims(
        [AddedClaims([(hosts[0].compute_node_uuid, RESOURCES)], shown.versions([hosts[0].compute_node_uuid]))]
    )
    shown.update(hosts=[host_row(1, up=False), host_row(9)], gone_hosts=[2])
    assert len(before) == 3
    assert used(before) == [0.0, 0.0, 0.0]
    assert before.up.tolist() == [True, True, True]
    assert [host.id for host in shown.snapshot().hosts] == [0, 1, 9]
    assert used(shown.snapshot()) == [2.0, 0.0, 0.0]
    assert shown.snapshot().up.tolist() == [True, False, True]


def test_a_host_that_is_gone_leaves_the_others_as_they_were() -> None:
    hosts = [host_row(number, availability_zone=f"zone{number}") for number in range(4)]
    shown = host_cache(hosts, [provider(host, VCPU=inventory(10 + host.id)) for host in hosts])
    shown.update(gone_hosts=[1, 3, 77], gone_providers=[1, 3, 77])
    snapshot = shown.snapshot()
    assert len(snapshot) == 2
    for row, host in enumerate(snapshot.hosts):
        assert snapshot.host(row).availability_zone == f"zone{host.id}"
        assert snapshot.capacity("VCPU")[row] == 10 + host.id
        assert snapshot.in_zone(f"zone{host.id}").tolist() == [other is host for other in snapshot.hosts]
        assert snapshot.named([f"HOST{host.id}"])[row]
    assert shown.host_seqs() == {0: 0, 2: 0}
    assert shown.provider_seqs() == {0: 0, 2: 0}


def test_a_claim_of_this_scheduler_shows_at_once_and_is_provisional_until_its_provider_is_read() -> None:
    host = host_row(1)
    shown = host_cache([host])
    shown.apply_claims([AddedClaims([(host.compute_node_uuid, RESOURCES)], shown.versions([host.compute_node_uuid]))])
    assert used(shown.snapshot()) == [2.0]
    assert used(shown.snapshot(), "MEMORY_MB") == [2048.0]
    assert shown.provisional_ids() == {1}
    shown.update(providers=[provider(host, 1, VCPU=inventory(16, used=2))])
    assert used(shown.snapshot()) == [2.0]
    assert shown.provisional_ids() == set()
    assert shown.provider_seqs() == {1: 1}


def test_a_claim_that_was_read_before_it_was_shown_is_not_counted_twice() -> None:
    host = host_row(1)
    shown = host_cache([host])
    versions = shown.versions([host.compute_node_uuid])
    shown.update(providers=[provider(host, 1, VCPU=inventory(16, used=2))])
    shown.apply_claims([AddedClaims([(host.compute_node_uuid, RESOURCES)], versions)])
    assert used(shown.snapshot()) == [2.0]
    assert shown.provisional_ids() == {1}


def test_a_change_of_a_host_keeps_what_was_claimed_on_it() -> None:
    host = host_row(1)
    shown = host_cache([host])
    shown.apply_claims([AddedClaims([(host.compute_node_uuid, RESOURCES)], shown.versions([host.compute_node_uuid]))])
    shown.update(hosts=[host_row(1, seq=1, disabled=True)])
    assert used(shown.snapshot()) == [2.0]
    assert shown.snapshot().enabled.tolist() == [False]


def test_a_claim_on_a_host_that_is_not_known_changes_nothing() -> None:
    shown = host_cache([host_row(1)], [])
    shown.apply_claims([AddedClaims([("somewhere", RESOURCES), (host_row(1).compute_node_uuid, RESOURCES)], {})])
    assert used(shown.snapshot()) == [0.0]
    assert shown.provisional_ids() == set()


def test_a_node_whose_provider_was_created_again_shows_the_new_one() -> None:
    host = host_row(1)
    shown = host_cache([host])
    recreated = provider(host_row(2, compute_node_uuid=host.compute_node_uuid), VCPU=inventory(4))
    shown.update(providers=[recreated], gone_providers=[1])
    assert shown.snapshot().host(0).inventories == {"VCPU": [inventory(4)]}
    shown.update(gone_providers=[1])
    assert shown.snapshot().host(0).inventories == {"VCPU": [inventory(4)]}


def test_a_node_whose_provider_was_created_again_below_another_host_has_nothing() -> None:
    host, other = host_row(1), host_row(2)
    shown = host_cache([host, other])
    below = replace(provider(host_row(3, compute_node_uuid=host.compute_node_uuid)), root_id=2, parent_id=2)
    # A claim that the other host has refused lets its tree be read before the feed.
    shown.update(providers=[below])
    shown.update(gone_providers=[1])
    shown.update(hosts=[host_row(4)], providers=[provider(host_row(4))])
    assert shown.snapshot().trees[0] is None
    assert shown.snapshot().host(0).inventories == {}


def test_a_host_that_was_registered_again_stays_when_the_feed_removes_the_former_one_late() -> None:
    former = host_row(1)
    recreated = host_row(2, service_host=former.service_host, compute_node_uuid=former.compute_node_uuid)
    shown = host_cache([former], [provider(former)])
    shown.update(hosts=[recreated, host_row(3)])

    shown.update(gone_hosts=[1])

    shown.update(providers=[provider(former, 1, VCPU=inventory(4), CUSTOM_NEW=inventory(7))], instances={1: 5})
    seen = shown.snapshot()
    row = [host.id for host in seen.hosts].index(2)
    assert (seen.capacity("CUSTOM_NEW")[row], seen.instances[row]) == (7, 5)
    shown.update(gone_hosts=[2])
    assert [host.id for host in shown.snapshot().hosts] == [3]


def test_a_host_that_was_registered_again_stays_although_the_row_of_the_former_one_moves_twice() -> None:
    former = host_row(3)
    recreated = host_row(4, service_host=former.service_host, compute_node_uuid=former.compute_node_uuid)
    shown = host_cache([host_row(1), host_row(2), former], [provider(former)])
    shown.update(hosts=[recreated])

    for gone in (1, 2, 3):
        shown.update(gone_hosts=[gone])

    shown.update(providers=[provider(former, 1, VCPU=inventory(4), CUSTOM_NEW=inventory(7))], instances={3: 5})
    seen = shown.snapshot()
    assert [host.id for host in seen.hosts] == [4]
    assert (seen.capacity("CUSTOM_NEW")[0], seen.instances[0]) == (7, 5)


def test_hosts_and_nodes_are_found_by_name_in_any_case_and_by_cell_and_zone_letter_by_letter() -> None:
    hosts = [host_row(1, service_host="Straße", nodename="A"), host_row(2, cell_uuid=CELLS[1], availability_zone="B")]
    shown = host_cache(hosts)
    snapshot = shown.snapshot()
    assert snapshot.named(["STRASSE", "nobody"]).tolist() == [True, False]
    assert snapshot.nodes_named(["a"]).tolist() == [True, False]
    assert snapshot.nodes_named([hosts[1].compute_node_uuid]).tolist() == [False, True]
    for found in (["a"], [hosts[1].compute_node_uuid]):
        assert [snapshot.host(row).nodes_named(found) for row in (0, 1)] == snapshot.nodes_named(found).tolist()
    assert snapshot.in_cell(CELLS[1]).tolist() == [False, True]
    assert snapshot.in_cell("no cell").tolist() == [False, False]
    assert snapshot.in_zone("b").tolist() == [False, False]
    assert snapshot.in_zone("B").tolist() == [False, True]
    shown.update(hosts=[host_row(1, seq=1, service_host="renamed")])
    assert shown.snapshot().named(["STRASSE"]).tolist() == [False, False]
    assert shown.snapshot().named(["Renamed"]).tolist() == [True, False]


def test_a_planned_claim_is_visible_only_in_its_plan() -> None:
    shown = host_cache([host_row(1), host_row(2)])
    snapshot = shown.snapshot()
    planned = PlannedView.of(snapshot, ["VCPU", "CUSTOM_UNHEARD_OF"])
    planned.claim(1, allocation_request({host_row(2).compute_node_uuid: {"VCPU": 15}}))
    assert planned.fits("VCPU", 2).tolist() == [True, False]
    assert planned.host(1).used("VCPU") == 15
    assert used(snapshot) == [0.0, 0.0]


def test_a_host_cache_of_no_hosts_answers_every_question() -> None:
    snapshot = host_cache([]).snapshot()
    assert len(snapshot) == 0
    for mask in (snapshot.up, snapshot.enabled, snapshot.fits("VCPU", 1), snapshot.named(["a"]), snapshot.in_zone("z")):
        assert mask.shape == (0,)
    assert snapshot.free("VCPU").shape == (0,)


# --- The number of instances ------------------------------------------------------------------------------------------


def instances(snapshot: Snapshot) -> list[int]:
    shown: list[int] = snapshot.instances.tolist()
    assert [snapshot.host(row).instances for row in range(len(snapshot))] == shown
    return shown


def test_the_instances_of_a_host_are_those_of_its_root_provider_whichever_was_read_first() -> None:
    first, second = host_cache([host_row(1)], []), host_cache([], [])
    first.update(providers=[provider(host_row(1))], instances={1: 5})
    second.update(providers=[provider(host_row(1))], instances={1: 5})
    second.update(hosts=[host_row(1), host_row(2)])
    assert instances(first.snapshot()) == [5]
    assert instances(second.snapshot()) == [5, 0]


def test_instances_stay_with_their_host_when_others_go_and_go_with_its_provider() -> None:
    hosts = [host_row(number) for number in range(4)]
    shown = host_cache(hosts)
    shown.update(instances={host.id: 10 + host.id for host in hosts})
    before = shown.snapshot()
    shown.update(gone_hosts=[0], gone_providers=[2])
    assert {
        host.id: count for host, count in zip(shown.snapshot().hosts, instances(shown.snapshot()), strict=True)
    } == {
        1: 11,
        2: 0,
        3: 13,
    }
    assert instances(before) == [10, 11, 12, 13]


def test_instances_that_are_claimed_here_show_at_once_and_not_twice_if_they_were_read_meanwhile() -> None:
    hosts = [host_row(1), host_row(2)]
    nodes = [host.compute_node_uuid for host in hosts]
    shown = host_cache(hosts)
    versions = shown.versions(nodes)
    shown.update(instances={2: 1})
    shown.apply_claims([AddedClaims([], versions, {nodes[0]: 2, nodes[1]: 1, "somewhere": 1})])
    assert instances(shown.snapshot()) == [2, 1]
    assert shown.provisional_ids() == {1, 2}


def test_the_count_of_an_unknown_provider_is_not_kept_for_a_later_provider_with_its_id() -> None:
    shown = host_cache([host_row(1)], [])
    shown.update(instances={1: 5})
    shown.update(providers=[provider(host_row(1))])
    assert instances(shown.snapshot()) == [0]


def test_a_planned_instance_counts_as_an_instance_and_an_io_operation_in_its_plan() -> None:
    shown = host_cache([host_row(1), host_row(2, io_ops=4)])
    snapshot = shown.snapshot()
    planned = PlannedView.of(snapshot, ["VCPU"])
    planned.claim(1, allocation_request({host_row(2).compute_node_uuid: {"VCPU": 1}}))
    assert instances(planned) == [0, 1]
    assert planned.io_ops.tolist() == [0, 5]
    assert planned.host(1).io_ops == 5
    assert (instances(snapshot), snapshot.io_ops.tolist()) == ([0, 0], [0, 4])


def test_a_change_of_the_load_of_a_host_keeps_its_attribute_columns() -> None:
    shown = host_cache([host_row(number, attributes={"rack": 1}) for number in (1, 2, 3)])
    before = shown.snapshot()
    rack = before.host_attributes.attribute("rack")
    shown.update(hosts=[host_row(1, attributes={"rack": 1}, io_ops=2, failed_builds=1.5, image_properties={"a=b": 3})])
    after = shown.snapshot()
    assert after.host_attributes.attribute("rack") is rack
    assert (after.io_ops.tolist(), after.failed_builds.tolist()) == ([2, 0, 0], [1.5, 0.0, 0.0])
    assert after.servers_with("a", "b").tolist() == [3, 0, 0]
    assert before.io_ops.tolist() == [0, 0, 0]


@dataclass
class FollowedHost:
    """A host in the store, and a cache that follows it as a follower does.

    The claims of a transaction are committed in one step and shown in a later one. Following takes three steps: it
    notes the expected state, reads, and settles. So other steps may come in between.
    """

    capacity: int = 1000
    used: int = 0
    seq: int = 0
    committed: list[tuple[Sequence[int], Versions, int]] = field(default_factory=list)
    following: list[Any] = field(default_factory=list)
    #: The used amount in the store at each `seq`, and the amount of the claims of each `seq` that the cache shows.
    used_at: dict[int, int] = field(default_factory=lambda: {0: 0})
    added: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.host = host_row(1)
        self.cache = host_cache([self.host], [self.row()])

    def row(self) -> FetchedProvider:
        return provider(self.host, self.seq, VCPU=inventory(self.capacity, used=self.used))

    def claim(self, amounts: Sequence[int]) -> None:
        """Commit claims of this scheduler in one transaction, one for each request."""
        versions = self.cache.versions([self.host.compute_node_uuid])
        self.commit(sum(amounts))
        self.committed.append((amounts, versions, self.seq))

    def commit(self, amount: int) -> None:
        self.seq, self.used = self.seq + 1, self.used + amount
        self.used_at[self.seq] = self.used

    def show(self) -> None:
        if self.committed:
            amounts, versions, seq = self.committed.pop(0)
            [before] = used(self.cache.snapshot())
            self.cache.apply_claims(
                [AddedClaims([(self.host.compute_node_uuid, {"VCPU": amount})], versions) for amount in amounts],
                bumped_once=True,
            )
            self.added[seq] += int(used(self.cache.snapshot())[0] - before)

    def write(self) -> None:
        """Commit a change by another writer."""
        self.commit(1)

    def follow(self) -> None:
        """Do the next step of following."""
        if not self.following:
            self.following = [self.cache.expected()]
        elif len(self.following) == 1:
            self.following.append({1: self.seq})
            self.following.append(self.row())
        else:
            expected, found, read = self.following
            if self.cache.settle(expected, found):
                self.cache.update(providers=[read])
                self.added.clear()
            later = sum(amount for seq, amount in self.added.items() if seq > found[1])
            assert used(self.cache.snapshot()) == [self.used_at[found[1]] + later]
            self.following = []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("claim"), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
            st.tuples(st.sampled_from(["show", "write", "follow", "follow"]), st.none()),
        ),
        max_size=40,
    )
)
def test_a_cache_that_reads_only_unexpected_changes_equals_the_store(steps: list[tuple[str, Any]]) -> None:
    now = FollowedHost()
    for step, amounts in steps:
        getattr(now, step)(*([amounts] if step == "claim" else []))

    while now.committed:
        now.show()
    while now.following:
        now.follow()
    for _ in range(3):
        now.follow()

    assert used(now.cache.snapshot()) == [now.used]
    assert now.cache.provider_seqs() == {1: now.seq}
    assert now.cache.provisional_ids() == set()


def test_a_host_that_only_this_scheduler_has_claimed_is_not_read_again() -> None:
    now = FollowedHost()
    now.claim([2, 3])
    now.show()
    now.claim([1])
    now.show()

    assert now.cache.settle(now.cache.expected(), {1: now.seq}) == set()

    assert used(now.cache.snapshot()) == [6.0]
    assert now.cache.provider_seqs() == {1: 2}
    # The feed names the change a second time.
    assert now.cache.settle(now.cache.expected(), {1: now.seq}) == set()


def test_a_host_that_another_writer_has_changed_is_read_again() -> None:
    now = FollowedHost()
    now.claim([2])
    now.show()
    now.write()
    assert now.cache.settle(now.cache.expected(), {1: now.seq}) == {1}


def test_a_host_is_read_again_if_more_than_the_claims_may_have_been_written() -> None:
    now = FollowedHost()
    now.claim([2])
    [(_, versions, _)] = now.committed
    now.cache.apply_claims([AddedClaims([(now.host.compute_node_uuid, {"VCPU": 2})], versions)])
    assert now.cache.settle(now.cache.expected(), {1: now.seq}) == {1}
