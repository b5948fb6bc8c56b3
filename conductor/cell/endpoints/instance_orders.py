"""The endpoint for orders to shelve, unshelve, rebuild and heal instances; the worker carries them out."""

import msgspec
from sqlalchemy import Connection

from conductor.cell.attempt_sequence import first_step
from conductor.cell.context import CellPart
from conductor.cell.holds import CellHolds
from conductor.cell.hosts.forced_down import must_be_evacuated
from conductor.cell.payloads import HealStep, RebuildStep, StartStep
from conductor.cell.records import order_numbers
from conductor.cell.records.instances import CellInstance
from conductor.engine.order_requests import origin
from conductor.engine.preconditions import require_settled
from conductor.engine.steps import HEAL, REBUILD, SHELVE, UNSHELVE, Operation
from moorage import errors, ids
from moorage.bus.bus import serves
from moorage.messages import (
    CancelUnshelveInCell,
    Done,
    HealInCell,
    HealsBegun,
    PrepareUnshelveInCell,
    RebuildInCell,
    ShelveInCell,
    UnshelveInCell,
)
from moorage.model import RequestSpec


class InstanceOrders(CellPart):
    """Records orders to shelve, unshelve, rebuild and heal, each with its operation.

    All but `heal_instances` raise ``InstanceNotFound`` if the instance is unknown here.
    """

    @serves(ShelveInCell)
    def shelve_instance(self, message: ShelveInCell) -> Done:
        """Begin to shelve an instance; if that is in progress, retry its current step at once.

        :raises InvalidState: it is not active, or its host is forced down.
        """
        forced_down = self._cell.forced_down.host_of(message.instance_uuid)

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = order_numbers.lock(self._cell.records, connection, message)
            if retried := self._cell.operations.retry_now(connection, instance.uuid, SHELVE):
                begun += retried
                return Done()
            instance.require("active")
            require_settled(connection, self._cell.operations, instance.uuid)
            attempt = self._cell.records.current(connection, instance)
            if attempt.host == forced_down:
                raise must_be_evacuated(instance.uuid, attempt.host, "nothing of it can be put on the shelf")
            # From now on the attempt cannot pass a gate, and a returning host destroys its guest.
            self._cell.records.change_attempt(connection, attempt.attempt_id, state="ended", reason="it was shelved")
            self._cell.records.change(connection, instance.uuid, state="shelving", reason=None)
            begun += self._begin(connection, message, SHELVE, "destroy", StartStep(number=attempt.number))
            return Done()

        return self._cell.requests.once(message, work)

    @serves(PrepareUnshelveInCell)
    def prepare_unshelve(self, message: PrepareUnshelveInCell) -> RequestSpec:
        """Reserve a shelved instance for an unshelving, and return its request spec.

        An instance that is already reserved, but has no claim, is reserved again.

        :raises InvalidState: it is not shelved.
        """

        def work(connection: Connection, _begun: list[Operation]) -> RequestSpec:
            instance = order_numbers.lock(self._cell.records, connection, message)
            if instance.state != "unshelving" or self._is_starting(connection, instance):
                instance.require("shelved")
            require_settled(connection, self._cell.operations, instance.uuid)
            self._cell.records.change(connection, instance.uuid, state="unshelving")
            return instance.spec

        return self._cell.requests.once(message, work)

    @serves(CancelUnshelveInCell)
    def cancel_unshelve(self, message: CancelUnshelveInCell) -> Done:
        """Cancel an unshelving for which nothing is claimed yet: the instance is shelved again."""

        def work(connection: Connection, _begun: list[Operation]) -> Done:
            instance = order_numbers.lock(self._cell.records, connection, message)
            if instance.state == "unshelving" and not self._is_starting(connection, instance):
                self._cell.records.change(connection, instance.uuid, state="shelved", reason=message.reason)
            return Done()

        return self._cell.requests.once(message, work)

    @serves(UnshelveInCell)
    def unshelve_instance(self, message: UnshelveInCell) -> Done:
        """Begin to start an instance on the host that is claimed for it; ignore a claim that was taken over before.

        :raises InvalidRequest: the first selection is not claimed.
        :raises InvalidState: it is not reserved for an unshelving, for instance because it is being deleted.
        """
        first = message.selections[0]
        claim_id = first.claim_id
        if claim_id is None:
            raise errors.InvalidRequest(path="$.selections[0]", reason="it is not claimed")

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = self._cell.records.lock_known(connection, message.instance_uuid)
            # The super conductor repeats this order until it is answered, perhaps for longer than an answer is stored.
            if self._cell.records.has_claim(connection, instance.uuid, claim_id):
                return Done()
            order_numbers.take(self._cell.records, connection, instance, message)
            if self._is_starting(connection, instance):
                raise errors.InvalidState(reason=f"instance {instance.uuid} is being started already")
            instance.require("unshelving")
            number = self._cell.records.next_number(connection, instance.uuid)
            step, payload = first_step(
                number, claim_id in self._cell.revoked_claims.among(connection, [claim_id]), claim_id
            )
            [operation] = self._begin(connection, message, UNSHELVE, step, payload)
            self._cell.records.add_attempt(
                connection,
                instance.uuid,
                first,
                attempt_id=operation.derived("attempt", number),
                number=number,
                claim_id=claim_id,
            )
            self._cell.records.change(
                connection,
                instance.uuid,
                selections=msgspec.json.encode(message.selections),
                first_number=number,
                attempt_number=number,
                host=first.service_host,
                claim_id=claim_id,
                reason=None,
            )
            begun.append(operation)
            return Done()

        return self._cell.requests.once(message, work)

    @serves(RebuildInCell)
    def rebuild_instance(self, message: RebuildInCell) -> Done:
        """Begin to replace an instance's guest; an instance in error can be rebuilt too, if it is on a host.

        :raises InvalidState: the instance cannot be rebuilt in its state.
        """

        def work(connection: Connection, begun: list[Operation]) -> Done:
            instance = order_numbers.lock(self._cell.records, connection, message)
            instance.require("active", "error")
            if instance.claim_id is None:
                raise errors.InvalidState(reason=f"instance {instance.uuid} is {instance.state} and on no host")
            require_settled(connection, self._cell.operations, instance.uuid)
            self._cell.records.change(connection, instance.uuid, state="rebuilding", reason=None)
            order_numbers.next_guest_order(self._cell.records, connection, instance)
            begun += self._begin(connection, message, REBUILD, "rebuild", RebuildStep(image=message.image))
            return Done()

        return self._cell.requests.once(message, work)

    @serves(HealInCell)
    def heal_instances(self, message: HealInCell) -> HealsBegun:
        """Begin to heal instances; refuse instances without a record here, or with a pending operation."""

        def work(connection: Connection, begun: list[Operation]) -> HealsBegun:
            refused: dict[str, str] = {}
            new: dict[str, Operation] = {}
            for uuid in sorted(message.instances):
                instance = self._cell.records.lock(connection, uuid)
                if instance is None:
                    refused[uuid] = f"this cell has no record of instance {uuid}"
                elif not CellHolds(self._cell).of(connection, [instance])[0].settled:
                    refused[uuid] = f"instance {uuid} is {instance.state}, and an operation on it may be under way"
                else:
                    heal_uuid = ids.derived(message.request_id, HEAL, uuid)
                    payload = HealStep(seen=message.instances[uuid])
                    new[uuid] = Operation.new(origin(message), heal_uuid, HEAL, uuid, "heal", payload)
            begun += self._cell.operations.begin(connection, list(new.values()))
            return HealsBegun(operations={uuid: each.uuid for uuid, each in new.items()}, refused=refused)

        return self._cell.requests.once(message, work)

    def _is_starting(self, connection: Connection, instance: CellInstance) -> bool:
        return self._cell.operations.lock_one_pending(connection, instance.uuid, UNSHELVE) is not None
