"""The writers of a simulated cloud: they write allocations over the interface of Placement, past the conductors."""

from functools import partial

from harness.simulation.clients.answers import LicenceWrite, noted
from harness.simulation.clients.requests import Methods, Requests
from harness.simulation.story import Action
from moorage import ids
from moorage.messages import PutAllocations
from moorage.model import ConsumerAllocations, ProviderAmounts

LICENCE = "CUSTOM_LICENCE"
#: A provider that belongs to no host; callers write its units to their own consumers and to servers.
LICENCES = ids.derived("simulation", "licences")


class Writers:
    """All writers of a cloud."""

    def __init__(self, callers: Requests) -> None:
        self._callers = callers
        self.methods: Methods = {"write": self._write, "write beside": self._write_beside}

    def _write(self, action: Action) -> None:
        """Let two callers write to one consumer, both with the generation that they have read: only one may succeed."""
        uuid = self._callers.uuid("writer", action.server % 2)
        self._callers.others.add(uuid)
        found = self._callers.consumer(uuid)
        generation = None if found is None else found.generation

        def put(amount: int) -> None:
            wanted = ConsumerAllocations(
                allocations={LICENCES: ProviderAmounts(resources={LICENCE: amount})},
                project_id="p",
                user_id="u",
                consumer_type="OTHER",
                consumer_generation=generation,
            )
            request_id = self._callers.request_id(action, amount)
            self._callers.call("placement", PutAllocations(request_id=request_id, consumer_uuid=uuid, wanted=wanted))

        amounts = (1 + action.choice % 7, 11 + action.choice % 7)
        broken = f"promise 7: two writers have both replaced generation {generation} of {uuid}"
        self._callers.compete(action, [partial(put, amount) for amount in amounts], broken)

    def _write_beside(self, action: Action) -> None:
        """Set the licences of a server, whatever is done with it meanwhile; it keeps what else it holds."""
        uuid = self._callers.servers[action.server]
        if uuid is None:
            return
        found = self._callers.consumer(uuid)
        amount = action.choice % 4
        # Without the generations of the providers: other servers' claims are no reason to refuse the write.
        held = {} if found is None else found.allocations
        others = {one: ProviderAmounts(resources=part.resources) for one, part in held.items() if one != LICENCES}
        licences = {LICENCES: ProviderAmounts(resources={LICENCE: amount})} if amount else {}
        if not others and not licences:
            return
        wanted = ConsumerAllocations(
            allocations=others | licences,
            project_id="p",
            user_id="u",
            consumer_generation=None if found is None else found.generation,
        )
        write = LicenceWrite("write", amount)
        self._callers.told[uuid].licences.append(write)
        message = PutAllocations(request_id=self._callers.request_id(action), consumer_uuid=uuid, wanted=wanted)
        with noted(write):
            write.generation = self._callers.send("placement", message).consumer_generation
