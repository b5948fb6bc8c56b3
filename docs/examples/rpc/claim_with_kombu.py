"""Claim a host and release it with kombu alone: the messages as they are on the wire.

python claim_with_kombu.py amqp://user:password@host:5672/vhost
"""

import json
import sys
import time
import uuid

import kombu

EXCHANGE = "moorage"
#: Seconds to wait for an answer, and the parts of them for the broker's queue and for the server.
TIMEOUT, QUEUE_PART, SERVER_PART = 30.0, 0.4, 0.5


class Refused(Exception):
    """Moorage has refused: the name of the error, and its data."""


class Caller:
    """Calls methods of Moorage, one at a time, over one connection."""

    def __init__(self, connection: kombu.Connection) -> None:
        self._connection = connection
        self._channel = connection.channel()
        # Answers go to the default exchange, under the name of this queue.
        self._answers = kombu.Queue(f"reply_{uuid.uuid4().hex}", exclusive=True, auto_delete=True)(self._channel)
        self._answers.declare()
        self._producer = kombu.Producer(self._channel)

    def call(self, topic: str, version: str, method: str, **arguments: object) -> object:
        """Return the answer.

        :raises Refused: Moorage refuses.
        :raises TimeoutError: no answer; whether the message was carried out is unknown.
        """
        message_id = uuid.uuid4().hex
        content = {
            "method": method,
            "version": version,
            "args": arguments,
            "_msg_id": message_id,
            "_reply_q": self._answers.name,
            "_timeout": None,
            "_unique_id": uuid.uuid4().hex,
            # The context: what begins with `_context_`.
            "_context_seconds_left": TIMEOUT * SERVER_PART,
        }
        # The message expires in the queue when nobody waits for it any more.
        self._producer.publish(
            {"oslo.version": "2.0", "oslo.message": json.dumps(content)},
            exchange=EXCHANGE,
            routing_key=topic,
            serializer="json",
            expiration=TIMEOUT * QUEUE_PART,
        )
        return self._answer(message_id)

    def _answer(self, message_id: str) -> object:
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            message = self._answers.get(no_ack=True, accept=["json"])
            if message is None:
                time.sleep(0.01)
                continue
            answer = json.loads(message.decode()["oslo.message"])
            if answer["_msg_id"] != message_id:
                continue  # of a call that was given up
            if answer.get("failure"):
                failure = json.loads(answer["failure"])
                raise Refused(failure["class"], failure["kwargs"])
            return answer["result"]
        raise TimeoutError(message_id)


def main(url: str) -> None:
    """Claim a host for one instance, and release it; then ask for more than any host has."""
    with kombu.Connection(url) as connection:
        caller = Caller(connection)
        request = {
            "request_spec": {"project_id": "p", "user_id": "u", "flavor": {"vcpus": 1, "memory_mb": 512}},
            "instance_uuids": [str(uuid.uuid4())],
            "num_alternates": 0,
        }
        request_id = str(uuid.uuid4())
        [[claimed]] = caller.call("scheduler", "1.0", "select_destinations", request_id=request_id, **request)
        # The same request id: the same answer, and no second claim.
        [[again]] = caller.call("scheduler", "1.0", "select_destinations", request_id=request_id, **request)
        print(f"claimed {claimed['service_host']}, and not twice: {again['claim_id'] == claimed['claim_id']}")
        caller.call(
            "placement",
            "1.0",
            "delete_allocations",
            request_id=str(uuid.uuid4()),
            consumer_uuid=request["instance_uuids"][0],
            for_good=True,
        )
        print("released")
        request["request_spec"]["flavor"]["vcpus"] = 100_000
        request["instance_uuids"] = [str(uuid.uuid4())]
        try:
            caller.call("scheduler", "1.0", "select_destinations", request_id=str(uuid.uuid4()), **request)
        except Refused as refusal:
            name, data = refusal.args
            print(f"refused: {name}: {data['instances']} instance: {data['summary']}")


if __name__ == "__main__":
    main(sys.argv[1])
