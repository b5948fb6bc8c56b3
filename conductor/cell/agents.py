"""Send orders to a cell's compute agents."""

import logging
from functools import partial
from typing import TypeVar

from msgspec import structs
from oslo_config import cfg
from sqlalchemy import Connection, select

from conductor.cell.hosts.hosts import CellHosts
from conductor.cell.payloads import HostOrderStep
from conductor.cell.records.attempts import AttemptRecord
from conductor.engine.bulkheads import Bulkheads, CircuitOpen, worker_share
from conductor.engine.step_calls import Calling, StepCall, run_calls_here
from conductor.engine.steps import REPEAT_UNCHANGED, Backoff, Operation, Wait
from moorage import context, errors
from moorage.bus.bus import Bus
from moorage.db.columns import now
from moorage.messages import DestroyOnHost
from moorage.messages.compute import OrderOnHost
from moorage.messages.wire import Message

LOG = logging.getLogger(__name__)

R = TypeVar("R")

#: The longest timeout of a probe, in seconds.
_PROBE_SECONDS = 2.0


class CellAgents:
    """Sends orders to the agents of a cell, each addressed by its name.

    :param backoff: the seconds between two probes of an agent that does not answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, cell_uuid: str, bus: Bus, hosts: CellHosts, backoff: Backoff) -> None:
        self._topic = f"compute.{cell_uuid}"
        self._bus = bus
        self._hosts = hosts
        self._backoff = backoff
        self._retries: int = conf.conductor.max_unanswered_retries
        self._longest: float = conf.conductor.build_timeout
        timeout: float = conf.rpc.call_timeout
        self._probe_seconds = min(timeout / 3, _PROBE_SECONDS)
        #: The bulkhead of each agent. A refused order is repeated a few times; then the next host is tried.
        self.bulkheads = Bulkheads(
            "agent", worker_share(conf), backoff, (errors.NoReply,), timeout / 3, postpones=False
        )

    def order(self, operation: Operation, attempt: AttemptRecord, message: OrderOnHost) -> str | None:
        """Send an order to an attempt's guest; return the reason if it is refused for good, else None.

        :raises MoorageError: the order may still succeed: repeat the same order.
        """
        with context.bound(attempt_id=attempt.attempt_id):
            try:
                self.call(self._present(attempt), message)
            except REPEAT_UNCHANGED:
                raise
            except errors.MoorageError as fault:
                # A failed action may succeed at the next try. A refusal is final, for instance because the guest is
                # missing.
                if isinstance(fault, errors.GuestActionFailed) and operation.tries < self._retries:
                    raise
                LOG.warning(
                    "The operation on the guest of %s on %s is not possible: %s", operation.subject, attempt.host, fault
                )
                return str(fault)
        return None

    def wait_for_order(self, step: str, payload: HostOrderStep, host: str, connection: Connection) -> Wait | str:
        """Return a wait before a step asks again for an order in progress; after the build timeout, why it has failed.

        The time begins with the first such answer: before it, the order may not have reached the host. An order that is
        not answered has no limit but the silence of its host: the host may still carry it out.
        """
        present: float = connection.scalars(select(now())).one()
        # If the clock was set back, the time begins again.
        since = present if payload.waits_since is None else min(payload.waits_since, present)
        if present - since > self._longest:
            return f"host {host} has not finished it within {self._longest:g} s"
        waiting = structs.replace(payload, waited=payload.waited + 1, waits_since=since)
        return Wait(step, waiting, self._backoff.seconds(waiting.waited), f"host {host} has not finished it")

    def why_left(self, operation: Operation, attempt: AttemptRecord) -> errors.MoorageError | None:
        """Destroy the guest of an attempt, unless it is gone; return the error if the guest may be left."""
        try:
            if not attempt.guest_gone:
                self.destroy(operation, attempt)
        except errors.MoorageError as fault:
            LOG.warning("The guest of %s on host %s may be left: %s", attempt.instance_uuid, attempt.host, fault)
            return fault
        return None

    def destroy(self, operation: Operation, attempt: AttemptRecord) -> None:
        """Order a host to destroy the guest of an attempt; when this returns, the guest is gone.

        A silent host is not called, because a thread would wait for each of many dead hosts. But it is called if its
        agent withholds it: its provider tree may be refused until this guest is gone. If a host has missed heartbeats,
        its agent is probed first: it may just have died, and a deletion would wait for the whole timeout of a call.

        :raises InvalidState: the host is silent.
        :raises MoorageError: the agent has raised it, or has not answered.
        """
        if attempt.claim_id is None:
            return
        silent = self._hosts.why_silent(attempt.host)
        if silent is not None and not self._hosts.is_withheld(attempt.host):
            raise errors.InvalidState(reason=silent)
        message = DestroyOnHost(
            request_id=operation.derived("destroy", attempt.attempt_id),
            host=attempt.host,
            instance_uuid=attempt.instance_uuid,
            attempt_id=attempt.attempt_id,
            claim_id=attempt.claim_id,
        )
        is_late = silent is None and self._hosts.is_late(attempt.host)
        with context.bound(attempt_id=attempt.attempt_id):
            run_calls_here(self.calling(self._present(attempt), message, probes=is_late))

    def answers(self, attempt: AttemptRecord) -> bool:
        """Probe the agent of an attempt, and return whether it answers; an order to a dead one would wait for long."""
        agent = self._present(attempt)
        client = self._bus.client(self._topic, server=agent)
        try:
            with self.bulkheads.admit(agent, agent, lambda: client.ping(self._probe_seconds)):
                client.ping(self._probe_seconds)
        except (CircuitOpen, errors.MoorageError) as fault:
            LOG.info("The agent %s does not answer: %s", agent, fault)
            return False
        return True

    def _present(self, attempt: AttemptRecord) -> str:
        """Return the agent that now serves the host of an attempt; it may have changed since the start."""
        return self._hosts.agent_of(attempt.host) or attempt.agent

    def call(self, agent: str, message: Message[R]) -> R:
        """Send an order to an agent and return its answer.

        :raises MoorageError: the agent has raised it, or has not answered.
        """
        return run_calls_here(self.calling(agent, message))

    def calling(self, agent: str, message: Message[R], *, probes: bool = False) -> Calling[R]:
        """Leave the sending of an order to the worker, and return its answer; raises as :meth:`call`.

        :param probes: send the order only if the agent answers a probe.
        """
        client = self._bus.client(self._topic, server=agent)
        probe = partial(client.ping, self._probe_seconds)
        try:
            with self.bulkheads.admit(agent, agent, probe):
                if probes:
                    yield probe
                answer: R = yield StepCall(client, message)
                return answer
        except CircuitOpen as silent:
            raise errors.AgentUnreachable(agent=agent, reason=str(silent)) from silent
