"""The operations of a scene on a server between its build and its deletion, each with its possible outcomes.

An action succeeds, or the server is unchanged and the reason is recorded. In the second case it is tried once more, and
must then succeed. An impossible action must leave the server unchanged, with the reason.
"""

from collections.abc import Callable
from typing import Any

from harness.waiting import wait_until
from moorage import errors
from moorage.messages import (
    AbortMigration,
    ConfirmMigration,
    EvacuateInstance,
    ListHosts,
    ListOperations,
    LiveMigrateInstance,
    MigrateInstance,
    Ordered,
    RebuildInstance,
    ResizeInstance,
    RevertMigration,
    SetHost,
    ShelveInstance,
    UnshelveInstance,
)
from moorage.messages.wire import Mutation
from moorage.model import Image, Instance, Migration
from support.processes.fault_servers import Server, check, flavor
from support.processes.faulty_cloud import HANGING, LEAVING, WORKING, Guest

Action = Callable[[Server], None]
#: A kind of message that orders a move.
Move = type[MigrateInstance] | type[ResizeInstance] | type[LiveMigrateInstance] | type[EvacuateInstance]

#: The number of tries of an action: a process is killed once, so the kill cannot make the second try fail.
TRIES = 2


# --- Moves ------------------------------------------------------------------------------------------------------------


def migrate(host: str | None = None) -> Action:
    """Migrate to this host or any; the migration then waits to be confirmed or reverted."""
    return lambda server: _move(server, MigrateInstance, "moved", host=host)


def resize(vcpus: int, host: str | None = None) -> Action:
    """Resize, on this host or any; the resize then waits to be confirmed or reverted."""
    return lambda server: _move(server, ResizeInstance, "moved", host=host, flavor=flavor(vcpus))


def live_migrate(host: str | None = None) -> Action:
    """Live-migrate to this host or any."""
    return lambda server: _move(server, LiveMigrateInstance, "confirmed", host=host)


def migrate_and_fail(host: str | None = None) -> Action:
    """Order a migration that fails."""
    return lambda server: _require_failure(server, server.show(), _order(server, MigrateInstance, host=host))


def resize_and_fail(vcpus: int) -> Action:
    """Order a resize that is impossible."""
    return lambda server: _require_failure(server, server.show(), _order(server, ResizeInstance, flavor=flavor(vcpus)))


def confirm(server: Server) -> None:
    """Confirm the move."""
    migration = _end(server, ConfirmMigration, "confirmed")
    assert server.becomes("active").host == migration.destination_host
    server.vcpus = server.becoming or server.vcpus


def revert(server: Server) -> None:
    """Revert the move."""
    migration = _end(server, RevertMigration, "reverted")
    assert server.becomes("active").host == migration.source_host


def live_migrate_and_abort(server: Server) -> None:
    """Live-migrate to a host that never finishes, and abort that."""
    before = server.show()
    ordered = _order(server, LiveMigrateInstance, host=HANGING[0])
    _wait_for_two_guests(server, ordered)
    try:
        server.order(AbortMigration(request_id=server.request_id("abort"), instance_uuid=server.uuid))
    except errors.InvalidState:
        # A killed process took so long to come back that the attempt on the host has timed out.
        assert server.comes_to(ordered.migration_uuid, {"failed"})
    _require_failure(server, before, ordered)


def live_migrate_and_abort_at_once(server: Server) -> None:
    """Order a live migration, and abort it before a host was chosen."""
    before = server.show()
    ordered = _order(server, LiveMigrateInstance, host=HANGING[0])
    server.becomes("moving")
    server.order(AbortMigration(request_id=server.request_id("abort"), instance_uuid=server.uuid))
    _require_failure(server, before, ordered)


def evacuate(server: Server) -> None:
    """Evacuate the server after its host was killed; then start the host again."""
    cloud = server.cloud
    cloud.kill("leaving agent")
    _force_down(server, LEAVING, True)
    before = _guests(server)
    _move(server, EvacuateInstance, "confirmed", tidy=False, host=WORKING[0])
    _come_back(server, before)


def begin_to_migrate(server: Server) -> None:
    """Begin to migrate to a host that never finishes, and leave the migration under way."""
    _wait_for_two_guests(server, _order(server, MigrateInstance, host=HANGING[0]))
    server.is_unsettled = True


# --- Shelves and images -----------------------------------------------------------------------------------------------


def shelve(server: Server) -> None:
    """Shelve the server."""
    server.order(ShelveInstance(request_id=server.request_id("shelve"), instance_uuid=server.uuid))
    server.becomes("shelved")


def shelve_on_a_host_that_dies(server: Server) -> None:
    """Shelve the server on a host that is killed and then forced down; then start the host again."""
    cloud = server.cloud
    before = _guests(server)
    cloud.kill("leaving agent")
    server.order(ShelveInstance(request_id=server.request_id("shelve"), instance_uuid=server.uuid))
    server.becomes("shelving")
    _force_down(server, LEAVING, True)
    server.becomes("shelved")
    _come_back(server, before)


def unshelve(host: str | None = None) -> Action:
    """Unshelve the server, on this host or any."""

    def action(server: Server) -> None:
        for _ in range(TRIES):
            _order_unshelve(server, host)
            instance = server.becomes("active", "shelved")
            if instance.state == "active":
                return
            assert instance.reason, instance
            check(server.cloud, [server])
        raise AssertionError(f"tried {TRIES} times: {server.show()}")

    return action


def unshelve_and_fail(host: str) -> Action:
    """Order an unshelving that is impossible."""

    def action(server: Server) -> None:
        _order_unshelve(server, host)
        instance = server.becomes("shelved")
        assert instance.reason, instance

    return action


def rebuild(server: Server) -> None:
    """Rebuild the server from another image."""
    before = server.show()
    for number in range(TRIES):
        server.order(
            RebuildInstance(
                request_id=server.request_id("rebuild"), instance_uuid=server.uuid, image=Image(id=f"other{number}")
            )
        )
        instance = server.becomes("active", "error")
        assert (instance.host, instance.claim_id) == (before.host, before.claim_id), instance
        if instance.state == "active":
            return
        assert instance.reason, instance
    raise AssertionError(f"tried {TRIES} times: {server.show()}")


# --- Late answers -----------------------------------------------------------------------------------------------------


def moved_by_a_late_answer(server: Server) -> None:
    """Order a move whose first request is still under way when its repetition is refused."""
    ordered = _order(server, MigrateInstance, host=WORKING[1])
    _refuse_until_fenced(server)
    server.comes_to(ordered.migration_uuid, {"moved", "failed"})
    server.becomes("moved", "active")


def unshelved_by_a_late_answer(server: Server) -> None:
    """Order an unshelving whose first request is still under way when its repetition is refused."""
    _order_unshelve(server, WORKING[1])
    _refuse_until_fenced(server)
    instance = server.becomes("active", "shelved")
    assert instance.state == "active" or instance.reason, instance


def _refuse_until_fenced(server: Server) -> None:
    """Force the chosen host down until the super conductor's operation has come to its fence, or has passed it."""
    _force_down(server, WORKING[1], True)

    def reached() -> bool:
        pending = server.cloud.call("conductor", ListOperations(instance_uuid=server.uuid))
        ours = [each for each in pending if each.cell_uuid is None]
        return not ours or any(each.step == "fence" for each in ours)

    try:
        wait_until(reached, "step fence", server.patience, interval=0.1)
    finally:
        _force_down(server, WORKING[1], False)


# ----------------------------------------------------------------------------------------------------------------------


def _order(server: Server, kind: Move, **fields: Any) -> Ordered:
    message: Mutation[Ordered] = kind(request_id=server.request_id("move"), instance_uuid=server.uuid, **fields)
    return server.order(message)


def _move(server: Server, kind: Move, wanted: str, tidy: bool = True, **fields: Any) -> None:
    size = fields.get("flavor")
    server.becoming = size.vcpus if size else None
    for _ in range(TRIES):
        before = server.show()
        ordered = _order(server, kind, **fields)
        migration = server.comes_to(ordered.migration_uuid, {wanted, "failed"})
        if migration.state == wanted:
            instance = server.becomes("moved" if wanted == "moved" else "active")
            assert instance.host == migration.destination_host, (instance, migration)
            return
        _require_as_before(server, before, migration)
        if tidy:
            check(server.cloud, [server])
    raise AssertionError(f"tried {TRIES} times: {server.show()}, {migration}")


def _require_failure(server: Server, before: Instance, ordered: Ordered) -> None:
    migration = server.comes_to(ordered.migration_uuid, {"failed", "moved", "confirmed"})
    assert migration.state == "failed", migration
    _require_as_before(server, before, migration)


def _require_as_before(server: Server, before: Instance, migration: Migration) -> None:
    assert migration.reason, migration
    instance = server.becomes("active", "error")
    found = (instance.state, instance.host, instance.claim_id, instance.migration_uuid)
    assert found == ("active", before.host, before.claim_id, None), (instance, migration)


def _end(server: Server, kind: type[ConfirmMigration] | type[RevertMigration], wanted: str) -> Migration:
    [migration] = server.migrations()
    server.order(kind(request_id=server.request_id(wanted), instance_uuid=server.uuid))
    return server.comes_to(migration.uuid, {wanted})


def _order_unshelve(server: Server, host: str | None) -> None:
    message = UnshelveInstance(request_id=server.request_id("unshelve"), instance_uuid=server.uuid, host=host)
    server.order(message)


def _wait_for_two_guests(server: Server, ordered: Ordered) -> None:
    def reached() -> bool:
        hosts = {guest.host for guest in server.cloud.guests() if guest.instance_uuid == server.uuid}
        return len(hosts) > 1 or ordered.migration_uuid not in {each.uuid for each in server.migrations()}

    wait_until(reached, "the guest to arrive", server.patience, interval=0.05)


def _guests(server: Server) -> list[Guest]:
    return [guest for guest in server.cloud.guests() if guest.instance_uuid == server.uuid and guest.host == LEAVING]


def _come_back(server: Server, before: list[Guest]) -> None:
    """Start the agent of the host that was forced down. It still has its guests: only it can report them as gone."""
    assert _guests(server) == before
    server.cloud.start_role("leaving agent")
    _force_down(server, LEAVING, False)
    up = [host for host in server.cloud.call("scheduler", ListHosts()) if host.service_host == LEAVING]
    assert up, "its host is unknown"


def _force_down(server: Server, host: str, is_down: bool) -> None:
    message = SetHost(request_id=server.request_id("host"), service_host=host, forced_down=is_down)
    server.cloud.call("scheduler", message, server.patience)
