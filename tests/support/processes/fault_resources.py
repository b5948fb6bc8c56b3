"""Resources that a server of a faulty cloud gains and loses: VCPU, because the cloud's checks count them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.waiting import wait_until
from moorage import errors, ids
from moorage.messages import (
    AttachResource,
    DeleteAllocations,
    DetachResource,
    GetAllocations,
    HealInCell,
    ListOperations,
    ListResourceProviders,
    OperationBegun,
    PutAllocations,
)
from moorage.model import ResourceGroup, SeenConsumer
from support.placement_store.builders import Store
from support.processes.fault_actions import TRIES
from support.processes.fault_servers import Server, check

PORT, VCPUS = "_port", 1


def attach(server: Server) -> None:
    """Attach a port; from then on it is held wherever the server goes."""
    for _ in range(TRIES):
        operation = server.ended(_order_attach(server))
        if operation.state == "done":
            server.vcpus += VCPUS
            assert PORT in server.show().attached
            return
        assert operation.reason, operation
        check(server.cloud, [server])
    raise AssertionError(f"tried {TRIES} times: {operation}")


def detach(server: Server) -> None:
    """Detach the port."""
    message = DetachResource(request_id=server.request_id("detach"), instance_uuid=server.uuid, suffix=PORT)
    operation = server.ended(server.order(message))
    assert operation.state == "done", operation
    server.vcpus -= VCPUS
    assert not server.show().attached


def attach_to_a_host_that_fills_up(server: Server) -> None:
    """Attach a port on a host that has room when the provider is chosen, but none when the allocation is written."""
    begun = _order_attach(server)
    with _filled(server, begun):
        operation = server.ended(begun)
    # A killed process may have come back only when there was room again.
    server.vcpus += VCPUS if operation.state == "done" else 0
    assert operation.reason or operation.state == "done", operation
    check(server.cloud, [server])
    if operation.state == "failed":
        attach(server)


def lose_and_heal(server: Server) -> None:
    """Release everything that the server holds without its conductors, and let its cell's records restore it."""
    cloud = server.cloud
    lost = DeleteAllocations(request_id=server.request_id("lose"), consumer_uuid=server.uuid)
    cloud.call("placement", lost, server.patience)
    for _ in range(TRIES):
        consumer = cloud.call("placement", GetAllocations(consumer_uuid=server.uuid), server.patience)
        seen = SeenConsumer(generation=consumer.generation, claim_id=consumer.claim_id)
        order = HealInCell(request_id=server.request_id("heal"), instances={server.uuid: {server.uuid: seen}})
        begun = cloud.call(f"conductor.{server.show().cell_uuid}", order, server.patience)
        operation = server.ended(OperationBegun(operation_uuid=begun.operations[server.uuid]))
        if operation.state == "done":
            return
        assert operation.reason, operation
    raise AssertionError(f"tried {TRIES} times: {operation}")


def _order_attach(server: Server) -> OperationBegun:
    group = ResourceGroup(resources={"VCPU": VCPUS})
    return server.order(
        AttachResource(request_id=server.request_id("attach"), instance_uuid=server.uuid, suffix=PORT, group=group)
    )


@contextmanager
def _filled(server: Server, begun: OperationBegun) -> Iterator[None]:
    """Let another consumer take all the rest of a server's host as soon as a provider has been chosen."""
    cloud, filler = server.cloud, ids.fresh()

    def chosen() -> bool:
        pending = cloud.call("conductor", ListOperations(instance_uuid=server.uuid), server.patience)
        ours = [one for one in pending if one.uuid == begun.operation_uuid]
        return not ours or ours[0].step != "choose"

    wait_until(chosen, "a provider to be chosen", server.patience, interval=0.05)
    [host] = cloud.call("placement", ListResourceProviders(name=server.show().host))
    left = int(host.inventories["VCPU"].capacity) - host.used["VCPU"]
    wanted = Store.wanted({host.uuid: {"VCPU": left}}, consumer_type="OTHER")
    with suppress(errors.CapacityExceeded):  # the attached amount may have been written just before
        cloud.call("placement", PutAllocations(request_id=ids.fresh(), consumer_uuid=filler, wanted=wanted))
    try:
        yield
    finally:
        message = DeleteAllocations(request_id=ids.fresh(), consumer_uuid=filler, for_good=True)
        cloud.call("placement", message, server.patience)
