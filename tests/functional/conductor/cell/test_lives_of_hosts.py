"""Messages of an earlier life of a host, or of its agent, that arrive late: they prove and change nothing."""

import pytest
from support.conductor.builders import FakeAgent, FakePlacement, World, node, report, wait_until

from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    AcceptInCell,
    AttemptsGone,
    BuildFailedInCell,
    BuildOnHost,
    HostsReported,
    ListEndedAttempts,
    ListStrangersInCell,
    ProvidersReported,
    ReportHostsInCell,
    ReportProviders,
    ReportProviderTree,
    ReturnHosts,
)
from moorage.model import EndedAttempt, Guest


def starts(world: World, *hosts: str) -> dict[str, int]:
    described = tuple(report(host) for host in hosts)
    message = ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=described, started=tuple(hosts))
    return world.cell_call(message).lives


def returning(world: World, *hosts: str) -> tuple[str, ...]:
    return world.cell_call(ReportHostsInCell(request_id=ids.fresh(), agent="agent", alive=tuple(hosts))).returning


def list_of(host: str, lives: dict[str, int], *guests: Guest) -> ReturnHosts:
    return ReturnHosts(request_id=ids.fresh(), agent="agent", hosts=(host,), guests=guests, lives=lives)


def guest_of(taken: BuildOnHost) -> Guest:
    return Guest(
        instance_uuid=taken.instance_uuid, host=taken.host, attempt_id=taken.attempt_id, claim_id=taken.claim_id
    )


def spawning(world: World) -> BuildOnHost:
    """Have a host in the middle of a spawn, whose attempt has passed the first gate."""
    world.agent.hold.clear()
    world.build()
    wait_until(lambda: len(world.agent.guests) == 1 and world.waiting() == 1)
    return world.agent.taken[-1]


def is_spawning(world: World, taken: BuildOnHost) -> bool:
    [attempt] = world.show(taken.instance_uuid).attempts
    return attempt.state == "building" and world.placement.hosts_held() == {node(taken.host)}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_list_of_guests_that_arrives_late_or_twice_is_no_proof_that_a_younger_guest_is_gone(
    world: World, restarted: bool
) -> None:
    empty = list_of("a", starts(world, "a"))
    world.cell_call(empty)
    taken = spawning(world)
    if restarted:
        starts(world, "a")

    world.cell_call(empty)

    assert is_spawning(world, taken)
    assert returning(world, "a") == (("a",) if restarted else ())
    world.agent.hold.set()
    assert world.becomes(taken.instance_uuid, "active").host == "a"


def test_a_list_without_a_life_has_its_host_return_and_is_no_proof_that_a_guest_is_gone(world: World) -> None:
    starts(world, "a")
    world.cell_call(list_of("a", {}))
    assert returning(world, "a") == ()
    taken = spawning(world)
    starts(world, "a")

    world.cell_call(list_of("a", {}))

    assert returning(world, "a") == ()
    assert is_spawning(world, taken)
    world.agent.hold.set()
    world.becomes(taken.instance_uuid, "active")


def test_a_list_is_used_once_where_it_holds_its_host_up(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = next(taken for taken in world.agent.taken if taken.host == "a")
    lives = starts(world, "a")
    holding_up = list_of("a", lives, guest_of(failed))
    world.cell_call(holding_up)
    [left] = world.cell_call(ListEndedAttempts(agent="agent", hosts=("a",)))
    world.cell_call(AttemptsGone(request_id=ids.fresh(), agent="agent", attempts=(left,)))

    world.cell_call(holding_up)

    assert world.cell_call(ListEndedAttempts(agent="agent", hosts=("a",))) == [], "the guest has gone since"
    assert returning(world, "a") == ("a",)
    assert starts(world, "a")["a"] > lives["a"] + 1


class Waiting(FakeAgent):
    """Takes builds up and asks at the first gate only when the test does so."""

    def build(self, message: BuildOnHost) -> None:
        """Nothing yet."""


@pytest.mark.parametrize("passed_before", [False, True])
def test_no_attempt_passes_the_first_gate_while_its_host_is_returning(world: World, passed_before: bool) -> None:
    agent = world.put(Waiting(world.bus))
    [uuid] = world.build()
    wait_until(lambda: bool(agent.taken) and world.waiting() == 1)
    if passed_before:
        agent.accept(agent.taken[0])
    lives = starts(world, "a")

    with pytest.raises(errors.RequestInProgress):
        agent.accept(agent.taken[0])
    world.cell_call(list_of("a", lives, guest_of(agent.taken[0])))

    agent.accept(agent.taken[0])
    agent.finish(agent.taken[0])
    assert world.becomes(uuid, "active").host == "a"


def test_an_attempt_that_a_list_does_not_have_does_not_pass_the_first_gate_afterwards(world: World) -> None:
    agent = world.put(Waiting(world.bus))
    [uuid] = world.build()
    wait_until(lambda: bool(agent.taken) and world.waiting() == 1)

    world.cell_call(list_of("a", starts(world, "a")))

    with pytest.raises(errors.ClaimReleased):
        agent.accept(agent.taken[0])
    wait_until(lambda: world.placement.hosts_held() == {node("b")})
    assert world.show(uuid).attempts[0].state == "failed"


@pytest.mark.parametrize("of_this_life", [False, True])
def test_a_failure_that_an_earlier_life_has_reported_leaves_a_residue_until_the_host_answers(
    world: World, of_this_life: bool
) -> None:
    taken = spawning(world)
    world.agent.deaf = {"a"}
    lives = starts(world, "a")
    world.cell_call(list_of("a", lives, guest_of(taken)))

    world.cell_call(
        BuildFailedInCell(
            request_id=ids.fresh(),
            instance_uuid=taken.instance_uuid,
            attempt_id=taken.attempt_id,
            claim_id=taken.claim_id,
            reason="it broke",
            life=lives["a"] if of_this_life else lives["a"] - 1,
        )
    )
    world.agent.hold.set()

    wait_until(lambda: [attempt.host for attempt in world.show(taken.instance_uuid).attempts] == ["a", "b"])
    assert bool(world.placement.residues) is not of_this_life
    world.agent.deaf = set()
    wait_until(lambda: not world.placement.residues)
    assert world.becomes(taken.instance_uuid, "active").host == "b"


def test_an_earlier_life_cannot_say_that_a_guest_is_gone_which_the_present_one_has_named(world: World) -> None:
    world.agent.failing = {"a"}
    [uuid] = world.build()
    world.becomes(uuid, "active")
    failed = next(taken for taken in world.agent.taken if taken.host == "a")
    lives = starts(world, "a")
    world.cell_call(list_of("a", lives, guest_of(failed)))
    [left] = world.cell_call(ListEndedAttempts(agent="agent", hosts=("a",)))
    late = AttemptsGone(request_id=ids.fresh(), agent="agent", attempts=(left,), lives=lives)

    world.cell_call(late)

    assert world.cell_call(ListEndedAttempts(agent="agent", hosts=("a",))) == [left]
    assert isinstance(left, EndedAttempt)


def test_an_old_list_brings_no_stranger_back(world: World) -> None:
    stranger = Guest(instance_uuid=ids.fresh(), host="a", attempt_id=ids.fresh(), claim_id=ids.fresh())
    old = list_of("a", starts(world, "a"), stranger)
    world.cell_call(old)
    assert len(world.cell_call(ListStrangersInCell())) == 1
    world.cell_call(list_of("a", starts(world, "a")))

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


def zone_told(world: World) -> str | None:
    told = [host.availability_zone for sent in list(world.scheduler.reports) for host in sent.hosts]
    return told[-1] if told else None


def has_returned(world: World, answer: HostsReported) -> None:
    world.cell_call(list_of("a", answer.lives))


@pytest.mark.parametrize("late", ["an earlier number", "an earlier incarnation", "the same once more"])
def test_a_description_that_arrives_late_puts_nothing_back(world: World, late: str) -> None:
    former, present = ids.fresh(), ids.fresh()
    world.cell_call(described(former, 1, "former", started=True))
    first = described(present, 1, "first", started=True)
    has_returned(world, world.cell_call(first))
    world.cell_call(described(present, 3, "last"))
    wait_until(lambda: zone_told(world) == "last")

    message = {
        "an earlier number": described(present, 2, "late"),
        "an earlier incarnation": described(former, 7, "late", started=True),
        "the same once more": first,
    }[late]
    answer = world.cell_call(message)

    assert answer.superseded is (late == "an earlier incarnation")
    assert returning(world, "a") == (), "the host is not sent back into returning either"
    world.cell_call(described(present, 4, "last of all"))
    wait_until(lambda: zone_told(world) == "last of all")
    assert "late" not in {host.availability_zone for sent in world.scheduler.reports for host in sent.hosts}


def test_a_heartbeat_of_an_earlier_incarnation_is_none(world: World) -> None:
    world.conf.set_override("host_down_after", 0.2, group="scheduler")
    world.restart("cell")
    former, present = ids.fresh(), ids.fresh()
    world.cell_call(described(former, 1, "nova", started=True))
    has_returned(world, world.cell_call(described(present, 1, "nova", started=True)))

    def silent() -> bool:
        answer = world.cell_call(described(former, 9, "nova", alive=True))
        return answer.superseded and answer.returning == ()

    assert silent()
    answer = world.cell_call(described(present, 2, "nova", alive=True))
    assert not answer.superseded
    assert world.cell_call(described(present, 3, "nova")).superseded is False, "heartbeats do not overtake descriptions"


class TakesTrees(FakePlacement):
    """Has room for every tree."""

    @serves(ReportProviders)
    def report_providers(self, _message: ReportProviders) -> ProvidersReported:
        return ProvidersReported()


def test_a_provider_tree_of_an_earlier_incarnation_or_number_is_refused(world: World) -> None:
    former, present = ids.fresh(), ids.fresh()
    world.serve("placement", TakesTrees())

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


def test_the_first_gate_is_asked_by_agents_of_the_former_release_as_before(world: World) -> None:
    message = AcceptInCell(
        request_id=ids.fresh(), instance_uuid=ids.fresh(), claim_id=ids.fresh(), attempt_id=ids.fresh(), host="a"
    )

    assert message.lowest_version() == "1.0"
    assert ReportHostsInCell(request_id=ids.fresh(), agent="agent", started=("a",)).lowest_version() == "1.1"
    assert list_of("a", {}).lowest_version() == "1.1"
    assert list_of("a", {"a": 1}).lowest_version() == "1.6"
    assert described(ids.fresh(), 2, "nova").lowest_version() == "1.6"
