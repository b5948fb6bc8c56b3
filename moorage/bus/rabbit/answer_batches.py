"""Batches of answers on RabbitMQ: if the calls of one process came in a batch, their answers are batched as well.

While an answer is being sent to a process, further answers to it wait and travel in the next message
(:mod:`moorage.bus.rabbit.message_batches`).
"""

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from moorage import context
from moorage.batches import Batches, BatchItem, in_parts
from moorage.bus.message_json import enveloped
from moorage.bus.rabbit.connection import Connection
from moorage.bus.rabbit.message_batches import (
    MAX_BYTES,
    MOST,
    REFUSED,
    Body,
    CallSender,
    Connect,
    OutgoingCall,
    size_of,
)

from oslo_messaging._drivers import amqpdriver
from oslo_messaging._drivers import common as rpc_common

LOG = logging.getLogger(__name__)

#: The key of the answers in a message with several of them, on the wire.
_ANSWERS = "moorage_answers"
#: The longest single wait for an answer, in seconds. The library begins with 1 ms after each answer and doubles that.
_POLL_SECONDS = 0.5
#: The number of waiting calls at which the library warns of a leak; its default is ten. Arbitrary.
_MANY_CALLS = 1000


class AnswerSender:
    """Send the answers to calls that came in batches; answers to the same process are batched as well."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        # Weak values: otherwise the mapping would keep an entry for every caller that ever was.
        self._batches: weakref.WeakValueDictionary[str, Batches[Body, None]] = weakref.WeakValueDictionary()

    def send(self, reply_queue: str, answers: Sequence[Body]) -> None:
        """Send answers, together with others that wait, and return once the broker has them.

        :raises MessageUndeliverable: the reply queue does not exist.
        """
        with self._lock:
            batches = self._batches.get(reply_queue)
            if batches is None:
                batches = Batches(lambda batch: self._send_batch(reply_queue, batch), MOST, "answers")
                self._batches[reply_queue] = batches
        items: list[BatchItem[Body, None]] = [BatchItem(answer) for answer in answers]
        batches.do_all(items)
        for item in items:
            item.outcome()

    def _send_batch(self, reply_queue: str, batch: Sequence[BatchItem[Body, None]]) -> None:
        for portion in in_parts(batch, lambda item: size_of(item.value), MAX_BYTES):
            answers = [item.value for item in portion]
            with self._connect(None) as connection:
                body = enveloped(answers[0]) if len(answers) == 1 else {_ANSWERS: answers}
                connection.direct_send(reply_queue, body)
            for item in portion:
                item.succeed(None)


class ReplyWaiter(amqpdriver.ReplyWaiter):  # type: ignore[misc]
    """The library's thread that receives a process's answers; it also takes batches of answers and refused batches."""

    def __init__(self, reply_queue: str, connection: Connection, modules: Sequence[str], calls: CallSender) -> None:
        self._calls = calls  # first: the library's construction starts the thread
        super().__init__(reply_queue, connection, modules)
        self.waiters._wrn_threshold = _MANY_CALLS  # noqa: SLF001 - there is no option

    def wait(self, msg_id: str, timeout: float, *arguments: Any) -> Any:
        """Wait for an answer, at most until the caller's deadline, because the call may have been sent late."""
        left = context.seconds_left()
        return super().wait(msg_id, timeout if left is None else min(timeout, max(left, 0.0)), *arguments)

    def listen_for(self, call: OutgoingCall) -> None:
        """Pass the answers received for a call to it, until :meth:`unlisten`."""
        self.waiters._queues[call.msg_id] = call  # noqa: SLF001 - the call takes the place of a queue

    def give(self, item: BatchItem[Any, Any], received: Any) -> None:
        """Give a call its result, or the error that was received or raised in its place."""
        result = received if isinstance(received, Exception) else self._process_reply(received)[0]
        if isinstance(result, Exception):
            item.fail(result)
        else:
            item.succeed(result)

    def poll(self) -> None:
        """Receive answers until the stop."""
        while not self._thread_exit_event.is_set():
            try:
                self.conn.consume(timeout=_POLL_SECONDS)
            except rpc_common.Timeout:
                continue
            except Exception:
                LOG.exception("An answer could not be received")

    def __call__(self, message: Any) -> None:
        """Give the answers in a message to the threads that wait for them."""
        message.acknowledge()
        answers = message.pop(_ANSWERS, [message])
        if len(answers) > 1:
            # Before the first answer is put: its thread may be the next one that runs.
            for answer in answers:
                if isinstance(call := self.waiters._queues.get(answer.get("_msg_id")), OutgoingCall):  # noqa: SLF001 - as above
                    call.expect_answer()
        for answer in answers:
            msg_id = answer.pop("_msg_id", None)
            refused = self._calls.calls_of_batch(msg_id)
            if not refused:
                self.waiters.put(msg_id, answer)
            for each in refused:
                self.waiters.put(each, REFUSED)
