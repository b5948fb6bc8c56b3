"""Test that an audit finds exactly the data that a store has lost, for any records of the cells."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moorage.cli.audit.findings import CloudState, judge
from moorage.ids import derived
from moorage.model import Flavor, Instance, InstanceHolds, ProviderAmounts, RecordedHold
from moorage.model.inspection import Holder, StoreAudit

CELLS = [derived("property", "cell", number) for number in range(2)]
NODES = [derived("property", "node", number) for number in range(3)]
#: One child of each node, and a pool that all of them share.
CHILDREN = {derived("property", "child", node): node for node in NODES}
POOL = derived("property", "pool")
CLASSES = ("VCPU", "MEMORY_MB", "VGPU")

Held = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Server:
    """An instance with its claim, and with that of its migration while it is moved."""

    number: int
    cell: str
    node: str
    amounts: Held
    moved_from: str | None

    @property
    def uuid(self) -> str:
        return derived("property", "instance", self.number)

    @property
    def migration(self) -> str | None:
        return None if self.moved_from is None else derived("property", "migration", self.number)

    @property
    def holds(self) -> tuple[RecordedHold, ...]:
        own = self._hold(self.uuid, self.node, self.amounts)
        if self.moved_from is None or self.migration is None:
            return (own,)
        source = {self.moved_from: {"VCPU": 1, "MEMORY_MB": 2}}
        return (own, self._hold(self.migration, self.moved_from, source, "MIGRATION", self.uuid))

    @staticmethod
    def _hold(uuid: str, node: str, amounts: Held, kind: Any = "INSTANCE", of: str | None = None) -> RecordedHold:
        return RecordedHold(
            consumer_uuid=uuid,
            consumer_type=kind,
            claim_id=derived(uuid, "claim"),
            root_provider_uuid=node,
            accepted_by=derived(uuid, "attempt"),
            allocations={provider: ProviderAmounts(resources=part) for provider, part in amounts.items()},
            pools=(POOL,) if POOL in amounts else (),
            project_id="p",
            user_id="u",
            migration_of=of,
        )

    @property
    def recorded(self) -> InstanceHolds:
        return InstanceHolds(instance_uuid=self.uuid, state="active", settled=True, holds=self.holds)

    @property
    def instance(self) -> Instance:
        return Instance(
            uuid=self.uuid,
            project_id="p",
            user_id="u",
            flavor=Flavor(vcpus=1, memory_mb=1),
            state="active" if self.migration is None else "moved",
            migration_uuid=self.migration,
        )


@st.composite
def servers(draw: st.DrawFn) -> list[Server]:
    def one(number: int) -> Server:
        node = draw(st.sampled_from(NODES))
        places = [node, derived("property", "child", node), POOL]
        resources = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 8), min_size=1)
        amounts = draw(st.dictionaries(st.sampled_from(places), resources, min_size=1))
        moved_from = draw(st.none() | st.sampled_from([other for other in NODES if other != node]))
        return Server(number, draw(st.sampled_from(CELLS)), node, amounts, moved_from)

    return [one(number) for number in range(draw(st.integers(1, 6)))]


# --- Damage to a consumer, and the kind of finding --------------------------------------------------------------------

Damage = Callable[[st.DataObject, Holder], Holder | None]


def lose(_data: st.DataObject, _holder: Holder) -> None:
    return None


def shrink(data: st.DataObject, holder: Holder) -> Holder:
    provider = data.draw(st.sampled_from(sorted(holder.held)))
    name = data.draw(st.sampled_from(sorted(holder.held[provider])))
    held = {uuid: dict(part) for uuid, part in holder.held.items()}
    held[provider][name] = data.draw(st.integers(0, held[provider][name] - 1))
    return structs.replace(holder, held=held)


def change_claim(data: st.DataObject, holder: Holder) -> Holder:
    claim_id = data.draw(st.sampled_from([None, derived("property", "other claim")]))
    # A migration without a claim is still its instance's.
    return structs.replace(holder, claim_id=claim_id)


def change_host(data: st.DataObject, holder: Holder) -> Holder:
    other = data.draw(st.sampled_from([node for node in NODES if node != holder.placed_on]))
    held = {(other if uuid != POOL else uuid): part for uuid, part in holder.held.items()}
    return structs.replace(holder, placed_on=other, held=held, root_provider_uuids=(other,))


def change_attempt(_data: st.DataObject, holder: Holder) -> Holder:
    return structs.replace(holder, accepted_by=derived("property", "other attempt"))


def put_more(_data: st.DataObject, holder: Holder) -> Holder:
    held = {uuid: {name: amount + 1 for name, amount in part.items()} for uuid, part in holder.held.items()}
    return structs.replace(holder, held={**held, derived("property", "others"): {"VGPU": 1}})


def reshape(_data: st.DataObject, holder: Holder) -> Holder:
    """Move all that is held of the tree to the child, as a reshape does."""
    held: Held = {}
    for uuid, part in holder.held.items():
        place = uuid if uuid == POOL else derived("property", "child", str(holder.placed_on))
        of_place = held.setdefault(place, {})
        for name, amount in part.items():
            of_place[name] = of_place.get(name, 0) + amount
    return structs.replace(holder, held=held)


DAMAGES: dict[Damage, str | None] = {
    lose: "unheld",
    shrink: "short",
    change_claim: "claim",
    change_host: "claim",
    change_attempt: "claim",
    put_more: None,
    reshape: None,
}


def holder_of(hold: RecordedHold) -> Holder:
    """Return a consumer that holds exactly what is recorded."""
    held = {uuid: dict(part.resources) for uuid, part in hold.allocations.items()}
    return Holder(
        uuid=hold.consumer_uuid,
        consumer_type=hold.consumer_type,
        claim_id=hold.claim_id,
        migration_of=hold.migration_of,
        accepted_by=hold.accepted_by,
        placed_on=hold.root_provider_uuid,
        allocations=sum(map(len, held.values())),
        held=held,
        root_provider_uuids=(hold.root_provider_uuid,),
    )


@given(clouds=servers(), data=st.data())
def test_an_audit_finds_exactly_the_lost_and_the_changed_consumers(clouds: list[Server], data: st.DataObject) -> None:
    expected, holders = set(), []
    for hold in (hold for server in clouds for hold in server.holds):
        holder: Holder | None = holder_of(hold)
        assert holder is not None
        damage = data.draw(st.none() | st.sampled_from(list(DAMAGES)))
        if damage is not None:
            holder = damage(data, holder)
            if (kind := DAMAGES[damage]) is not None:
                expected.add((kind, hold.consumer_uuid, hold.migration_of or hold.consumer_uuid))
        if holder is not None:
            holders.append(holder)
    unknown = data.draw(st.integers(0, 2))
    for number in range(unknown):
        uuid = derived("property", "unknown", number)
        holders.append(Holder(uuid=uuid, consumer_type="INSTANCE", claim_id=uuid, allocations=1))
        expected.add(("leaked", uuid, uuid))

    found = judge(
        CloudState(
            store=StoreAudit(holders=tuple(holders), roots=CHILDREN),
            instances=[server.instance for server in clouds],
            recorded={cell: [server.recorded for server in clouds if server.cell == cell] for cell in CELLS},
            all_recorded=True,
        )
    )

    assert {(one.kind, one.subject, one.instance_uuid) for one in found} == expected
