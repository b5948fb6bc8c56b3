"""An evacuation whose confirmation a deletion cuts short, between the store's answer and the record of it."""

from support.conductor.builders import World, node, report, wait_until
from support.conductor.moving_instances import Mover, becomes, built, shown

from moorage import failpoints, ids
from moorage.messages import AttemptsGone, DeleteInCell, ListEndedAttempts, ReportHostsInCell


def starts(world: World, host: str) -> None:
    message = ReportHostsInCell(request_id=ids.fresh(), agent="agent", hosts=(report(host),), started=(host,))
    assert world.cell_call(message).returning == (host,)


def test_the_residue_of_an_evacuation_whose_end_a_deletion_has_cut_short_goes_when_its_dead_host_returns(
    world: World,
) -> None:
    world.conf.set_override("host_down_after", 0.3, group="scheduler")
    world.restart("cell", delete_patience=0.3)
    uuid = built(world)
    source = shown(world, uuid).attempts[0]
    starts(world, "a")
    world.agent.deaf = {"a"}
    struck: list[str] = []

    def strike(name: str) -> None:
        # The store has left the residue, and nobody has recorded that.
        if name == "step.confirm.end.done" and not struck:
            struck.append(name)
            world.cell_call(DeleteInCell(request_id=ids.fresh(), instance_uuid=uuid))

    move = Mover(world, uuid, "evacuation")
    with failpoints.observed(strike):
        move.move("b")
        becomes(world, uuid, "deleted")
    assert world.placement.residues == {move.migration: node("a")}
    # The host is not waited for as long as it is silent, unless something is held there.
    wait_until(lambda: world.pending("cell", "AND tries < 3") == 0)

    # By what its host says alone: nothing that is sent there arrives before.
    starts(world, "a")
    [ended] = world.cell_call(ListEndedAttempts(agent="agent", hosts=("a",)))
    assert ended.attempt_id == source.attempt_id
    world.cell_call(AttemptsGone(request_id=ids.fresh(), agent="agent", attempts=(ended,)))
    world.agent.deaf = set()

    wait_until(lambda: not world.placement.residues)
    wait_until(lambda: world.pending("cell") == 0)
