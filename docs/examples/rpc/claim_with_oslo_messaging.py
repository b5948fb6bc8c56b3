"""Claim a host, own the claim, and release it, with oslo.messaging alone: nothing of Moorage is imported.

python claim_with_oslo_messaging.py rabbit://user:password@host:5672/vhost
"""

import contextlib
import sys
import uuid

from oslo_config import cfg

import oslo_messaging

EXCHANGE = "moorage"
OWNER = "leases"
#: Seconds to wait for an answer, and the part of them that the server gets.
TIMEOUT, SERVER_PART = 30.0, 0.5


class Owner:
    """Answers whether a claim is still wanted: the topic is the ``owner`` of the claims."""

    target = oslo_messaging.Target(version="1.1")

    def __init__(self) -> None:
        self.wanted: set[str] = set()

    def owns_claim(self, context: dict, request_id: str, consumer_uuid: str, claim_id: str) -> dict:
        """Answer for one claim. A service that says no must never use the claim afterwards."""
        return {"owned": claim_id in self.wanted}


class Caller:
    """Calls methods of Moorage; a call without an answer is repeated with the same request id."""

    def __init__(self, transport: oslo_messaging.Transport) -> None:
        self._transport = transport

    def call(self, topic: str, version: str, method: str, **arguments: object) -> object:
        """Return the answer.

        :raises oslo_messaging.RemoteError: Moorage refuses; ``exc_type`` is the name of the error.
        """
        target = oslo_messaging.Target(topic=topic, version=version)
        client = oslo_messaging.get_rpc_client(self._transport, target, timeout=TIMEOUT)
        context = {"seconds_left": TIMEOUT * SERVER_PART}
        for tries_left in (2, 1, 0):
            try:
                return client.call(context, method, **arguments)
            except oslo_messaging.MessagingTimeout:
                if not tries_left:
                    raise
        raise AssertionError("not reached")


def claim(caller: Caller, instance: str) -> list[dict]:
    """Return the claimed host of an instance, and its alternates."""
    [selections] = caller.call(
        "scheduler",
        "1.0",
        "select_destinations",
        request_id=str(uuid.uuid4()),
        request_spec={"project_id": "p", "user_id": "u", "flavor": {"vcpus": 1, "memory_mb": 512, "root_gb": 1}},
        instance_uuids=[instance],
        num_alternates=2,
        owner=OWNER,
    )
    return selections


def accept(caller: Caller, instance: str, selection: dict) -> None:
    """Accept a claim, as its host does before it begins to build."""
    caller.call(
        "placement",
        "1.0",
        "accept_claim",
        request_id=str(uuid.uuid4()),
        consumer_uuid=instance,
        claim_id=selection["claim_id"],
        attempt_id=str(uuid.uuid4()),
        host=selection["service_host"],
    )


def swap(caller: Caller, instance: str, failed: dict, alternate: dict) -> str:
    """Claim an alternate instead of a host that has nothing of the guest left; return the new claim's id."""
    swapped = caller.call(
        "placement",
        "1.0",
        "swap_claim",
        request_id=str(uuid.uuid4()),
        consumer_uuid=instance,
        claim_id=failed["claim_id"],
        released=failed["allocation_request"],
        claimed=alternate["allocation_request"],
        root_provider_uuid=alternate["compute_node_uuid"],
        guest_gone=True,
    )
    return swapped["claim_id"]


def release(caller: Caller, instance: str) -> None:
    """Release all that an instance holds, for good."""
    caller.call(
        "placement",
        "1.0",
        "delete_allocations",
        request_id=str(uuid.uuid4()),
        consumer_uuid=instance,
        for_good=True,
    )


def main(url: str) -> None:
    """Claim a host for one instance, accept the claim, go on to an alternate, and release it."""
    conf = cfg.CONF  # the library registers some of its options on this object alone
    conf([], default_config_files=[])
    oslo_messaging.set_transport_defaults(EXCHANGE)
    transport = oslo_messaging.get_rpc_transport(conf, url=url)
    caller, owner = Caller(transport), Owner()
    # Before the first claim: an owner that does not answer keeps its claims, and is reported.
    server = oslo_messaging.get_rpc_server(
        transport, oslo_messaging.Target(topic=OWNER, server="one"), [owner], executor="threading"
    )
    server.start()
    instance = str(uuid.uuid4())
    selection, *alternates = claim(caller, instance)
    owner.wanted.add(selection["claim_id"])
    print(f"claimed {selection['service_host']}, alternates {[one['service_host'] for one in alternates]}", flush=True)
    accept(caller, instance, selection)
    print(f"accepted {selection['claim_id']}", flush=True)
    # The build has failed on that host.
    if alternates:
        owner.wanted = {swap(caller, instance, selection, alternates[0])}
        print(f"swapped to {alternates[0]['service_host']}", flush=True)
    with contextlib.suppress(EOFError):  # nobody is there to wait for
        input("enter releases the claim: ")
    release(caller, instance)
    print("released", flush=True)
    server.stop()
    server.wait()
    transport.cleanup()


if __name__ == "__main__":
    main(sys.argv[1])
