"""Random messages to the placement store, based on its content: most can be carried out, some not, few make no sense.

A seeded generator makes them, not Hypothesis: the content depends on which of two writers was first, but Hypothesis
requires equal draws in each repetition.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

from moorage import ids
from moorage.messages import (
    AcceptClaim,
    CreateResourceProvider,
    DeleteAllocations,
    DeleteInventories,
    DeleteInventory,
    DeleteResourceClass,
    DeleteResourceProvider,
    DeleteTrait,
    EnsureResourceClass,
    EnsureTrait,
    PostAllocations,
    PutAllocations,
    ReportProviders,
    Reshape,
    ReshapeByInstructions,
    SetAggregates,
    SetInventories,
    SetInventory,
    SetTraits,
    SwapClaim,
    UpdateResourceProvider,
)
from moorage.model import (
    AllocationRequest,
    ChildProvider,
    ConsumerAllocations,
    Inventory,
    InventoryFields,
    MoveInstruction,
    ProviderAmounts,
    ProviderReport,
    ReshapedInventories,
)
from placement_store.claims.claim import NewClaim
from support.placement_store.model import Claim, Model, described

# Only a few of each, so that messages concern the same ones.
PROVIDERS = [ids.derived("provider", number) for number in range(6)]
NAMES = [f"provider {number}" for number in range(6)]
CONSUMERS = [ids.derived("consumer", number) for number in range(4)]
CLASSES = ["VCPU", "VGPU", "CUSTOM_BANDWIDTH"]
TRAITS = ["CUSTOM_FAST", "CUSTOM_RED", "CUSTOM_ROUND"]
AGGREGATES = [ids.derived("aggregate", number) for number in range(2)]
#: No message creates it.
UNKNOWN_CLASS = "CUSTOM_NOWHERE"

Resources = dict[str, dict[str, int]]


class Writes:
    """Makes one message, based on the content of the model."""

    def __init__(self, model: Model, random: Random) -> None:
        self._model = model
        self._random = random
        self._pairs = sorted((uuid, name) for uuid, one in model.providers.items() for name in one.inventories)

    def any(self) -> Any:
        """Return a message of any kind; its probability is proportional to its occurrences in :data:`KINDS`."""
        return self._random.choice(KINDS)(self)

    # --- Parts ------------------------------------------------------------------------------------------------------

    def _once_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def _some(self, options: Sequence[Any], at_most: int = 3, at_least: int = 0) -> list[Any]:
        most = min(at_most, len(options))
        return self._random.sample(options, self._random.randint(min(at_least, most), most))

    def _mutation(self) -> dict[str, Any]:
        return {"request_id": ids.fresh()}

    def _provider(self) -> str:
        """Return a provider, which exists in most cases."""
        there = sorted(self._model.providers)
        return self._random.choice(PROVIDERS if not there or self._once_in(12) else there)

    def _parent(self) -> str | None:
        return None if self._once_in(3) else self._provider()

    def _root(self, uuid: str) -> str:
        return self._model.root_of(uuid) if uuid in self._model.providers else uuid

    def _amounts(self, at_least: int = 0) -> Resources:
        """Return amounts by provider and class, mostly of existing inventories."""
        pairs = {pair: self._random.randint(1, 4) for pair in self._some(self._pairs, at_least=at_least)}
        if self._once_in(10) or (not pairs and at_least):
            name = self._random.choice([*CLASSES, UNKNOWN_CLASS])
            pairs[self._random.choice(PROVIDERS), name] = self._random.randint(1, 4)
        return described(pairs)

    def _generation(self, uuid: str) -> int:
        """Return the generation of a provider, rarely a wrong one."""
        present = self._model.providers[uuid].generation if uuid in self._model.providers else 0
        return present + self._once_in(12)

    def _named_or_not(self, uuid: str) -> int | None:
        return self._generation(uuid) if self._once_in(2) else None

    def _consumer_generation(self, uuid: str) -> int | None:
        """Return the generation of a consumer, rarely a wrong one."""
        present = self._model.holders[uuid].generation if uuid in self._model.holders else None
        return (present or 0) + 1 if self._once_in(12) else present

    def _parts(self, resources: Resources) -> dict[str, ProviderAmounts]:
        """Return amounts in the form of a message, now and then with the provider generation that it relies on."""
        return {
            uuid: ProviderAmounts(resources=part, generation=self._generation(uuid) if self._once_in(5) else None)
            for uuid, part in resources.items()
        }

    def _wanted(self, uuid: str, allocations: dict[str, ProviderAmounts]) -> ConsumerAllocations:
        return ConsumerAllocations(
            allocations=allocations,
            project_id=self._random.choice(["project", "another project"]),
            user_id="user",
            consumer_generation=self._consumer_generation(uuid),
        )

    def _inventory(self) -> Inventory:
        return Inventory(
            total=self._random.randint(1, 12),
            reserved=self._random.choice([0, 0, 0, 1, 2]),
            min_unit=self._random.choice([1, 1, 1, 2]),
            max_unit=self._random.choice([100, 100, 100, 3]),
            step_size=self._random.choice([1, 1, 1, 2]),
            allocation_ratio=self._random.choice([1.0, 1.0, 1.0, 0.5, 1.5]),
        )

    def _inventories(self) -> dict[str, Inventory]:
        return {name: self._inventory() for name in self._some(CLASSES)}

    # --- Providers --------------------------------------------------------------------------------------------------

    def create(self) -> CreateResourceProvider:
        """Return the creation of a provider that may already exist, by uuid or by name; mostly a child of another."""
        uuid, name = self._random.choice(PROVIDERS), self._random.choice(NAMES)
        return CreateResourceProvider(**self._mutation(), uuid=uuid, name=name, parent_provider_uuid=self._parent())

    def update(self) -> UpdateResourceProvider:
        """Return a change of the name or of the parent, which may be a descendant."""
        new: dict[str, Any] = {"name": self._random.choice(NAMES)} if self._once_in(2) else {}
        if not new or self._once_in(2):
            new["parent_provider_uuid"] = self._parent()
        return UpdateResourceProvider(**self._mutation(), uuid=self._provider(), **new)

    def delete_provider(self) -> DeleteResourceProvider:
        """Return the deletion of a provider that may be in use."""
        return DeleteResourceProvider(**self._mutation(), uuid=self._provider())

    def set_inventories(self) -> SetInventories:
        """Return all new inventories of a provider, which may be less than is used."""
        uuid, described_ = self._provider(), self._inventories()
        return SetInventories(**self._mutation(), uuid=uuid, generation=self._generation(uuid), inventories=described_)

    def set_one_inventory(self) -> SetInventory | DeleteInventory | DeleteInventories:
        """Return the new inventory of one class, its deletion, or the deletion of all inventories."""
        uuid, kind, name = self._provider(), self._random.randrange(6), self._random.choice(CLASSES)
        this: dict[str, Any] = {**self._mutation(), "uuid": uuid, "generation": self._named_or_not(uuid)}
        if kind == 0:
            return DeleteInventories(**this)
        if kind == 1:
            return DeleteInventory(**this, resource_class=name)
        expected: Literal["any", "present", "absent"] = self._random.choice(["any", "present", "absent"])
        return SetInventory(**this, resource_class=name, inventory=self._inventory(), expected=expected)

    def set_traits(self) -> SetTraits:
        """Return all new traits of a provider, now and then the current ones."""
        uuid, chosen = self._provider(), tuple(self._some(TRAITS))
        return SetTraits(**self._mutation(), uuid=uuid, traits=chosen, generation=self._named_or_not(uuid))

    def set_aggregates(self) -> SetAggregates:
        """Return all new aggregates of a provider, now and then the current ones."""
        uuid, chosen = self._provider(), tuple(self._some(AGGREGATES))
        return SetAggregates(**self._mutation(), uuid=uuid, aggregates=chosen, generation=self._named_or_not(uuid))

    def name(self) -> Any:
        """Return the creation or deletion of a custom class or trait."""
        kinds = [(EnsureResourceClass, CLASSES[-1]), (DeleteResourceClass, CLASSES[-1])]
        kinds += [(kind, self._random.choice(TRAITS)) for kind in (EnsureTrait, DeleteTrait)]
        kind, name = self._random.choice(kinds)
        return kind(**self._mutation(), name=name)

    def report(self) -> ReportProviders:
        """Return a report of a host's tree, mostly the current one with one or two changes."""
        root = self._root(self._provider())
        uuids = sorted(self._model.tree(root), key=self._depth) or [root]
        if self._once_in(3):
            uuids = list(dict.fromkeys([*uuids, self._random.choice(PROVIDERS)]))
        gone = tuple(uuid for uuid in reversed(uuids) if self._once_in(8))
        reported = tuple(self._report(uuid, root) for uuid in uuids if uuid not in gone)
        return ReportProviders(**self._mutation(), providers=reported, gone=gone)

    def _report(self, uuid: str, root: str) -> ProviderReport:
        present = self._model.providers.get(uuid)
        above = root if uuid != root else None
        return ProviderReport(
            uuid=uuid,
            name=self._random.choice(NAMES) if present is None or self._once_in(8) else present.name,
            inventories=self._inventories() if present is None or self._once_in(3) else dict(present.inventories),
            parent_provider_uuid=above if present is None else present.parent,
            traits=self._random.choice([None, ("CUSTOM_FAST",)]),
            aggregates=self._random.choice([None, (AGGREGATES[0],)]),
            generation=self._named_or_not(uuid) if present is not None else None,
        )

    def _depth(self, uuid: str) -> int:
        parent = self._model.providers[uuid].parent
        return 0 if parent is None else 1 + self._depth(parent)

    # --- Reshapes ---------------------------------------------------------------------------------------------------

    def reshape(self) -> Reshape:
        """Return a reshape that moves a class and its consumers to another provider, with at most one difference."""
        held = sorted(self._model.used())
        source, name = self._random.choice(held or self._pairs or [(PROVIDERS[0], CLASSES[0])])
        target = self._provider()
        wanted = {
            uuid: dict(self._model.providers[uuid].inventories)
            for uuid in (source, target)
            if uuid in self._model.providers
        }
        moved = wanted.get(source, {}).pop(name, None) or self._inventory()
        wanted.setdefault(target, {})[name] = moved if self._once_in(2) else self._inventory()
        holders = [uuid for uuid, one in sorted(self._model.holders.items()) if (source, name) in one.held]
        left_out = 1 if self._once_in(6) else 0
        return Reshape(
            **self._mutation(),
            inventories={
                uuid: ReshapedInventories(generation=self._generation(uuid), inventories=inventories)
                for uuid, inventories in wanted.items()
            },
            allocations={uuid: self._reshaped(uuid, (source, name), target) for uuid in holders[left_out:]},
        )

    def _reshaped(self, uuid: str, pair: tuple[str, str], target: str) -> ConsumerAllocations:
        held = dict(self._model.holders[uuid].held)
        held[target, pair[1]] = held.get((target, pair[1]), 0) + held.pop(pair)
        return self._wanted(uuid, {p: ProviderAmounts(resources=part) for p, part in described(held).items()})

    def reshape_by_instructions(self) -> ReshapeByInstructions:
        """Return instructions that move some of a provider's inventory to other, perhaps new, providers of its tree."""
        source, name = self._random.choice(self._pairs or [(PROVIDERS[0], CLASSES[0])])
        inventory = self._model.inventory((source, name))
        total = inventory.total if inventory else 1
        tree = sorted(self._model.tree(self._root(source)) - {source})
        instructions: list[MoveInstruction] = []
        children: dict[str, ChildProvider] = {}
        for _ in range(self._random.randint(1, 2)):
            target = self._random.choice(tree if tree and self._once_in(2) else PROVIDERS)
            # Mostly at most the total amount.
            amount = self._random.randint(1, max(1, total))
            total -= 0 if self._once_in(8) else amount
            moved = {name: amount}
            instructions.append(
                MoveInstruction(from_resource_provider=source, moved_resources=moved, to_resource_provider=target)
            )
            if target not in self._model.providers:
                children.setdefault(target, self._child(target, source, name))
        return ReshapeByInstructions(
            **self._mutation(), instructions=tuple(instructions), providers=tuple(children.values())
        )

    def _child(self, uuid: str, source: str, name: str) -> ChildProvider:
        taken = {provider.name for provider in self._model.providers.values()}
        fields = InventoryFields(max_unit=self._random.choice([None, 2]), reserved=self._random.choice([None, 0, 1]))
        return ChildProvider(
            uuid=uuid,
            name=self._random.choice([one for one in NAMES if one not in taken] or NAMES),
            parent=source if self._once_in(2) else self._root(source),
            inventories=self._random.choice([{}, {name: fields}]),
            traits=tuple(self._some(TRAITS, at_most=1)),
            aggregates=tuple(self._some(AGGREGATES, at_most=1)),
        )

    # --- Allocations and claims -------------------------------------------------------------------------------------

    def put(self) -> PutAllocations:
        """Return all new allocations of one consumer."""
        uuid = self._random.choice(CONSUMERS)
        wanted = self._wanted(uuid, self._parts(self._amounts()))
        return PutAllocations(**self._mutation(), consumer_uuid=uuid, wanted=wanted)

    def post(self) -> PostAllocations:
        """Return all new allocations of several consumers."""
        wanted = {u: self._wanted(u, self._parts(self._amounts())) for u in self._some(CONSUMERS, at_least=1)}
        return PostAllocations(**self._mutation(), consumers=wanted)

    def move(self) -> PostAllocations:
        """Return a write that moves a consumer's allocations to another and gives it new ones, as a migration does."""
        source, target = self._random.sample(CONSUMERS, 2)
        held = described(self._model.holders[source].held) if source in self._model.holders else {}
        moved = {uuid: ProviderAmounts(resources=part) for uuid, part in held.items()}
        wanted = {source: self._wanted(source, self._parts(self._amounts())), target: self._wanted(target, moved)}
        return PostAllocations(**self._mutation(), consumers=wanted)

    def claim(self) -> Claim:
        """Return the placement of one or two consumers, in one transaction."""
        return Claim(tuple(self._new_claim(uuid) for uuid in self._some(CONSUMERS, at_least=1, at_most=2)))

    def _new_claim(self, uuid: str) -> NewClaim:
        resources = self._amounts(at_least=1)
        return NewClaim(
            consumer_uuid=uuid,
            project_id="project",
            user_id="user",
            root_provider_uuid=self._root(next(iter(resources))),
            allocations=resources,
            owner=self._random.choice([None, "conductor"]),
            consumer_generation=self._consumer_generation(uuid),
        )

    def swap(self) -> SwapClaim:
        """Return the swap of a claim to another host, or to the same."""
        uuid, claim_id = self._standing_claim()
        holder = self._model.holders.get(uuid)
        tree = self._model.tree(holder.root) if holder else set()
        on_host = {pair: amount for pair, amount in holder.held.items() if pair[0] in tree} if holder else {}
        # After a reshape, the claimed amounts are no longer at their old place.
        on_host = {(self._provider() if self._once_in(6) else p, name): n for (p, name), n in on_host.items()}
        released = described(on_host) or {PROVIDERS[0]: {"VCPU": 1}}
        claimed = self._amounts(at_least=1)
        how: dict[str, Any] = self._random.choice([{}, {"guest_gone": True}, {"leave_residue": True}])
        return SwapClaim(
            **self._mutation(),
            consumer_uuid=uuid,
            claim_id=claim_id,
            released=AllocationRequest(allocations=self._parts(released)),
            claimed=AllocationRequest(allocations=self._parts(claimed)),
            root_provider_uuid=self._root(next(iter(claimed))),
            **how,
        )

    def _standing_claim(self) -> tuple[str, str]:
        """Return a consumer and its claim, rarely a claim that does not exist."""
        standing = [(uuid, one.claim_id) for uuid, one in sorted(self._model.holders.items()) if one.claim_id]
        if not standing or self._once_in(12):
            return self._random.choice(CONSUMERS), ids.derived("no claim")
        return self._random.choice(standing)

    def accept(self) -> AcceptClaim:
        """Return the acceptance of a claim by a host; the host may have accepted it already."""
        uuid, claim_id = self._standing_claim()
        number = self._random.randint(0, 1)
        attempt_id, host = ids.derived("attempt", claim_id, number), f"host {number}"
        return AcceptClaim(**self._mutation(), consumer_uuid=uuid, claim_id=claim_id, attempt_id=attempt_id, host=host)

    def release(self) -> DeleteAllocations:
        """Return the release of a consumer's claim, accepted or not."""
        uuid, claim_id = self._standing_claim()
        how: dict[str, Any] = self._random.choice([{}, {"unaccepted": True}, {"leave_residue": True}])
        if for_good := self._once_in(4):
            how = how | self._for_good(uuid, claim_id)
        elif claim_id is not None and self._once_in(4):
            how = how | self._claimed_with(uuid, claim_id)
        if self._once_in(6):
            how = how | {"consumer_generation": self._consumer_generation(uuid)}
        return DeleteAllocations(**self._mutation(), consumer_uuid=uuid, claim_id=claim_id, for_good=for_good, **how)

    def _for_good(self, uuid: str, claim_id: str | None) -> dict[str, Any]:
        """Return the fields about foreign allocations: whether to keep them, and mostly the claimed amounts."""
        named = {} if claim_id is None or self._once_in(4) else self._claimed_with(uuid, claim_id)
        return {"keep_extras": self._once_in(2), **named}

    def _claimed_with(self, uuid: str, claim_id: str) -> dict[str, Any]:
        """Return the claimed amounts of a consumer, which are a part of what it holds."""
        holder = self._model.holders.get(uuid)
        if holder is None or not holder.held:
            return {}
        claimed = {
            pair: self._random.randint(1, holder.held[pair]) for pair in self._some(sorted(holder.held), at_least=1)
        }
        return {"claimed_with": {claim_id: AllocationRequest(allocations=self._parts(described(claimed)))}}

    def delete(self) -> DeleteAllocations:
        """Return the release of a consumer, or of an attempt whose guest is gone, with or without a residue."""
        attempts = {one.accepted_by for one in self._model.holders.values() if one.accepted_by}
        uuid = self._random.choice(sorted({*CONSUMERS, *self._model.holders, *attempts}))
        holder = self._model.holders.get(uuid)
        how: dict[str, Any] = {}
        if for_good := uuid not in CONSUMERS or self._once_in(8):
            how = self._for_good(uuid, holder.claim_id if holder else None)
        return DeleteAllocations(**self._mutation(), consumer_uuid=uuid, for_good=for_good, **how)


#: The kinds of messages; the probability of each is proportional to its occurrences.
KINDS: Sequence[Callable[[Writes], Any]] = (
    *[Writes.put, Writes.claim] * 4,
    *[Writes.post, Writes.move, Writes.swap, Writes.accept] * 2,
    *[Writes.delete, Writes.release, Writes.create, Writes.update, Writes.delete_provider] * 2,
    *[Writes.set_inventories, Writes.set_one_inventory, Writes.set_traits, Writes.set_aggregates, Writes.name],
    *[Writes.report, Writes.reshape] * 2,
    *[Writes.reshape_by_instructions] * 4,
)
