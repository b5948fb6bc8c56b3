"""Compare the content of a store, and its answers, with those of the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from moorage import errors
from moorage.messages import ServerGroupState
from moorage.model import Consumer, ResourceProvider
from placement_store.schema import allocations, consumers, inventories, resource_providers
from support.placement_store.model import Model, Refused, apply, groups

#: The outcome of a write: its answer, or the error.
Outcome = Any


@dataclass(frozen=True)
class Seen:
    """The content of the store after a step."""

    providers: dict[str, ResourceProvider]
    consumers: dict[str, Consumer]
    groups: dict[str, ServerGroupState]
    #: The number and the `seq` of each provider.
    seqs: dict[str, tuple[int, int]]
    #: The capacity and the use of each inventory, by provider uuid and number of the class.
    amounts: dict[tuple[str, int], tuple[float, int]]
    #: The number of instances placed on each provider, if there are any.
    placed: dict[str, int]


def answer(model: Model, message: Any, outcome: Outcome) -> Any:
    """Return the answer of the model, or its refusal."""
    try:
        return apply(message, model, outcome)
    except Refused as refusal:
        return refusal


def agree(outcome: Outcome, expected: Any) -> bool:
    """Return whether the store has answered, or refused, like the model."""
    if isinstance(expected, Refused):
        return isinstance(outcome, errors.MoorageError) and expected.covers(outcome)
    return bool(outcome == expected)


def shows(model: Model, state: Seen) -> bool:
    """Return whether the content of the store is that of a model."""
    return not differences(model, state)


def differences(model: Model, state: Seen) -> list[tuple[str, object, object]]:
    """Return the differences between the store and a model: uuid, found, expected."""
    wanted: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (state.providers, {uuid: model.shown(uuid) for uuid in model.providers}),
        (state.consumers, {uuid: model.shown_consumer(uuid) for uuid in model.holders}),
        (state.groups, dict(groups.shown(model))),
    ]
    return [
        (uuid, found.get(uuid), expected.get(uuid))
        for found, expected in wanted
        for uuid in sorted(found.keys() | expected.keys())
        if found.get(uuid) != expected.get(uuid)
    ]


def is_noticeable(before: Seen, after: Seen, root: str) -> bool:
    """Return whether the placement of instances on a host changed together with allocations there, and only theirs.

    An instance that uses another host as a pool may get its placement there, or lose it, with the same allocations.
    """
    placed = [
        {uuid for uuid, one in seen.consumers.items() if one.claim_id and one.root_provider_uuid == root}
        for seen in (before, after)
    ]
    there = [
        {
            uuid
            for uuid, one in seen.consumers.items()
            if any(seen.providers[at].root_provider_uuid == root for at in one.allocations)
        }
        for seen in (before, after)
    ]
    strangers = {
        uuid
        for seen, holding in zip((before, after), there, strict=True)
        for uuid in holding
        if (one := seen.consumers[uuid]).claim_id and one.root_provider_uuid != root
    }
    gone, come = placed[0] - placed[1], placed[1] - placed[0]
    return not strangers and gone <= there[0] and come <= there[1]


def moved_trees(before: Seen, after: Seen) -> set[str]:
    """Return the roots of the trees in which the ``seq`` of a provider has changed, or a provider was deleted."""
    moved = {uuid for uuid in before.seqs.keys() | after.seqs.keys() if before.seqs.get(uuid) != after.seqs.get(uuid)}
    seen = [*before.providers.values(), *after.providers.values()]
    return {provider.root_provider_uuid for provider in seen if provider.uuid in moved}


def underneath(
    connection: Connection,
) -> tuple[Any, dict[tuple[int, int], int], dict[tuple[int, int], Any], Sequence[str]]:
    """Return the rows of providers; sums of allocations and rows of inventories by provider and class; consumers."""
    table = resource_providers.c
    rows = connection.execute(select(table.uuid, table.id, table.seq)).all()
    sums: dict[tuple[int, int], int] = {}
    for row in connection.execute(_ALLOCATIONS):
        pair = (row.resource_provider_id, row.resource_class_id)
        sums[pair] = sums.get(pair, 0) + row.used
    described = {(row.resource_provider_id, row.resource_class_id): row for row in connection.execute(_INVENTORIES)}
    return rows, sums, described, connection.scalars(_CONSUMERS).all()


_ALLOCATIONS, _INVENTORIES, _CONSUMERS = select(allocations), select(inventories), select(consumers.c.uuid)
