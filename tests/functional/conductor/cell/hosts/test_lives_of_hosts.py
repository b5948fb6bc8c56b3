"""Test that late messages of an earlier life of a host, or of its agent, change nothing."""

import msgspec
import pytest
from msgspec import structs
from support.conductor.builders import FakeAgent, FakePlacement, World, node, report, wait_until
from support.conductor.host_reports import (
    ended_attempts,
    guest_of,
    list_of_guests,
    report_gone,
    returning,
    start_hosts,
)

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AcceptInCell,
    BuildFailedInCell,
    BuildOnHost,
    ListStrangersInCell,
    ProvidersReported,
    ReportHostsInCell,
    ReportProviders,
    ReportProviderTree,
)
from moorage.model import Guest


def spawning(world: World) -> BuildOnHost:
    """Order a build, and return it when its host has begun the spawn."""
    world.agent.may_finish.clear()
    world.build()
    wait_until(lambda: len(world.agent.guests) == 1 and world.waiting() == 1)
    return world.agent.builds[-1]


def is_spawning(world: World, build: BuildOnHost) -> bool:
    [attempt] = world.show(build.instance_uuid).attempts
    return attempt.state == "building" and world.placement.hosts_held() == {node(build.host)}


def test_a_host_returns_although_it_has_had_later_lives_with_another_node_under_another_agent(world: World) -> None:
    world.cell_call(list_of_guests("a", start_hosts(world, "a").lives))
    former = structs.replace(report("b"), service_host="a", agent="other")
    other = {"nodename": "'b'", "agent": "'other'", "description": "?", "life": "life + 5", "last_seen": "0"}
    with world.records.engine.begin() as connection:
        columns = [row[1] for row in connection.exec_driver_sql("PRAGMA table_info(cell_hosts)")]
        connection.exec_driver_sql(
            f"INSERT INTO cell_hosts ({', '.join(columns)}) "
            f"SELECT {', '.join(other.get(column, column) for column in columns)} FROM cell_hosts",
            (msgspec.json.encode(former),),
        )

    first = start_hosts(world, "a").lives
    second = start_hosts(world, "a").lives
    world.cell_call(list_of_guests("a", first))
    assert returning(world, "a") == ("a",)
    world.cell_call(list_of_guests("a", second))

    assert returning(world, "a") == ()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_list_of_guests_that_arrives_late_or_twice_is_no_proof_that_a_younger_guest_is_gone(
    world: World, restarted: bool
) -> None:
    empty = list_of_guests("a", start_hosts(world, "a").lives)
    world.cell_call(empty)
    build = spawning(world)
    if restarted:
        start_hosts(world, "a")

    world.cell_call(empty)

    assert is_spawning(world, build)
    assert returning(world, "a") == (("a",) if restarted else ())
    world.agent.may_finish.set()
    assert world.becomes(build.instance_uuid, "active").host == "a"


def test_a_list_of_guests_without_a_life_ends_the_return_and_is_no_proof_that_a_guest_is_gone(world: World) -> None:
    start_hosts(world, "a")
    world.cell_call(list_of_guests("a", {}))
    assert returning(world, "a") == ()
    build = spawning(world)
    start_hosts(world, "a")

    world.cell_call(list_of_guests("a", {}))

    assert returning(world, "a") == ()
    assert is_spawning(world, build)
    world.agent.may_finish.set()
    world.becomes(build.instance_uuid, "active")


def test_a_list_of_guests_that_delays_the_return_of_its_host_is_used_once(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = world.agent.build_on("a")
    lives = start_hosts(world, "a").lives
    with_failed_guest = list_of_guests("a", lives, guest_of(failed))
    world.cell_call(with_failed_guest)
    [left] = ended_attempts(world, "a")
    report_gone(world, left)

    world.cell_call(with_failed_guest)

    assert ended_attempts(world, "a") == [], "the guest is gone since the first list"
    assert returning(world, "a") == ("a",)
    assert start_hosts(world, "a").lives["a"] > lives["a"] + 1


class WaitingAgent(FakeAgent):
    """Accepts orders to build, and passes the first gate only when the test does so."""

    def build(self, message: BuildOnHost) -> None:
        """Do nothing yet."""


@pytest.mark.parametrize("passed_before", [False, True])
def test_no_attempt_passes_the_first_gate_while_its_host_is_returning(world: World, passed_before: bool) -> None:
    agent = world.replace(WaitingAgent(world.bus))
    [uuid] = world.build()
    wait_until(lambda: bool(agent.builds) and world.waiting() == 1)
    if passed_before:
        agent.accept(agent.builds[0])
    lives = start_hosts(world, "a").lives

    with pytest.raises(errors.RequestInProgress):
        agent.accept(agent.builds[0])
    world.cell_call(list_of_guests("a", lives, guest_of(agent.builds[0])))

    agent.accept(agent.builds[0])
    agent.finish(agent.builds[0])
    assert world.becomes(uuid, "active").host == "a"


def test_an_attempt_that_is_missing_from_a_list_of_guests_does_not_pass_the_first_gate_afterwards(world: World) -> None:
    agent = world.replace(WaitingAgent(world.bus))
    [uuid] = world.build()
    wait_until(lambda: bool(agent.builds) and world.waiting() == 1)

    world.cell_call(list_of_guests("a", start_hosts(world, "a").lives))

    with pytest.raises(errors.ClaimReleased):
        agent.accept(agent.builds[0])
    wait_until(lambda: world.placement.hosts_held() == {node("b")})
    assert world.show(uuid).attempts[0].state == "failed"


@pytest.mark.parametrize("of_this_life", [False, True])
def test_a_failure_reported_by_an_earlier_life_leaves_a_residue_until_the_host_answers(
    world: World, of_this_life: bool
) -> None:
    build = spawning(world)
    world.agent.no_reply_to_destroy = {"a"}
    lives = start_hosts(world, "a").lives
    world.cell_call(list_of_guests("a", lives, guest_of(build)))

    world.cell_call(
        BuildFailedInCell(
            request_id=ids.fresh(),
            instance_uuid=build.instance_uuid,
            attempt_id=build.attempt_id,
            claim_id=build.claim_id,
            reason="it broke",
            life=lives["a"] if of_this_life else lives["a"] - 1,
        )
    )
    world.agent.may_finish.set()

    wait_until(lambda: [attempt.host for attempt in world.show(build.instance_uuid).attempts] == ["a", "b"])
    assert bool(world.placement.residues) is not of_this_life
    world.agent.no_reply_to_destroy = set()
    wait_until(lambda: not world.placement.residues)
    assert world.becomes(build.instance_uuid, "active").host == "b"


def test_an_earlier_life_cannot_report_a_guest_as_gone_that_the_current_life_has_listed(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = world.agent.build_on("a")
    lives = start_hosts(world, "a").lives
    world.cell_call(list_of_guests("a", lives, guest_of(failed)))
    [left] = ended_attempts(world, "a")

    report_gone(world, left, lives=lives)

    assert ended_attempts(world, "a") == [left]


def test_an_old_list_of_guests_does_not_bring_an_unknown_guest_back(world: World) -> None:
    unknown = Guest(instance_uuid=ids.fresh(), host="a", attempt_id=ids.fresh(), claim_id=ids.fresh())
    old = list_of_guests("a", start_hosts(world, "a").lives, unknown)
    world.cell_call(old)
    assert len(world.cell_call(ListStrangersInCell())) == 1
    world.cell_call(list_of_guests("a", start_hosts(world, "a").lives))

    world.cell_call(old)

    assert world.cell_call(ListStrangersInCell()) == []


# --- Numbered reports -------------------------------------------------------------------------------------------------


def described(
    incarnation: str, number: int, zone: str, *, started: bool = False, alive: bool = False
) -> ReportHostsInCell:
    return ReportHostsInCell(
        request_id=ids.fresh(),
        agent="agent",
        hosts=() if alive else (report("a", zone),),
        alive=("a",) if alive else (),
        started=("a",) if started else (),
        incarnation=incarnation,
        number=number,
    )


def last_reported_zone(world: World) -> str | None:
    zones = [host.availability_zone for sent in list(world.scheduler.reports) for host in sent.hosts]
    return zones[-1] if zones else None


@pytest.mark.parametrize("late", ["an earlier number", "an earlier incarnation", "the same once more"])
def test_a_description_that_arrives_late_changes_nothing(world: World, late: str) -> None:
    former, present = ids.fresh(), ids.fresh()
    world.cell_call(described(former, 1, "former", started=True))
    first = described(present, 1, "first", started=True)
    world.cell_call(list_of_guests("a", world.cell_call(first).lives))
    world.cell_call(described(present, 3, "last"))
    wait_until(lambda: last_reported_zone(world) == "last")

    message = {
        "an earlier number": described(present, 2, "late"),
        "an earlier incarnation": described(former, 7, "late", started=True),
        "the same once more": first,
    }[late]
    answer = world.cell_call(message)

    assert answer.superseded is (late == "an earlier incarnation")
    assert returning(world, "a") == (), "the host does not have to return again"
    world.cell_call(described(present, 4, "last of all"))
    wait_until(lambda: last_reported_zone(world) == "last of all")
    assert "late" not in {host.availability_zone for sent in world.scheduler.reports for host in sent.hosts}


def test_a_heartbeat_of_an_earlier_incarnation_is_ignored(world: World) -> None:
    world.conf.set_override("host_down_after", 0.2, group="scheduler")
    world.restart("cell")
    former, present = ids.fresh(), ids.fresh()
    world.cell_call(described(former, 1, "nova", started=True))
    lives = world.cell_call(described(present, 1, "nova", started=True)).lives
    world.cell_call(list_of_guests("a", lives))

    answer = world.cell_call(described(former, 9, "nova", alive=True))

    assert (answer.superseded, answer.returning) == (True, ())
    assert not world.cell_call(described(present, 2, "nova", alive=True)).superseded
    assert not world.cell_call(described(present, 3, "nova")).superseded, "heartbeats do not overtake descriptions"


class AcceptingPlacement(FakePlacement):
    """Accepts every provider tree."""

    @serves(ReportProviders)
    def report_providers(self, _message: ReportProviders) -> ProvidersReported:
        return ProvidersReported()


def test_a_provider_tree_of_an_earlier_incarnation_or_number_is_refused(world: World) -> None:
    former, present = ids.fresh(), ids.fresh()
    world.replace(AcceptingPlacement())

    def tree(incarnation: str, number: int) -> ReportProviderTree:
        return ReportProviderTree(
            request_id=ids.fresh(), agent="agent", providers=(), incarnation=incarnation, number=number
        )

    world.cell_call(tree(former, 1))
    world.cell_call(described(present, 1, "nova", started=True))
    world.cell_call(tree(present, 3))
    world.cell_call(tree(present, 3))

    for late in (tree(former, 2), tree(present, 2)):
        with pytest.raises(errors.InvalidState, match="later message"):
            world.cell_call(late)


def test_messages_of_agents_of_the_previous_release_keep_their_versions(world: World) -> None:
    message = AcceptInCell(
        request_id=ids.fresh(), instance_uuid=ids.fresh(), claim_id=ids.fresh(), attempt_id=ids.fresh(), host="a"
    )

    assert message.lowest_version() == "1.0"
    assert ReportHostsInCell(request_id=ids.fresh(), agent="agent", started=("a",)).lowest_version() == "1.1"
    assert list_of_guests("a", {}).lowest_version() == "1.1"
    assert list_of_guests("a", {"a": 1}).lowest_version() == "1.6"
    assert described(ids.fresh(), 2, "nova").lowest_version() == "1.6"
