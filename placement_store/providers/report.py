"""Apply reports of provider trees by the agents of their hosts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from moorage import errors
from moorage.messages import ProvidersReported, ReportProviders
from moorage.model import ProviderReport
from placement_store.db import bulk, change_feed
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import StaleRead
from placement_store.db.store import Store, handles
from placement_store.providers import aggregates, disabled_hosts, host_aggregate_links, inventories, traits
from placement_store.providers import create as new_providers
from placement_store.providers import rows as providers
from placement_store.providers import tree as trees
from placement_store.providers.create import NewProvider
from placement_store.providers.inventories import Wanted
from placement_store.providers.rows import LockedRow
from placement_store.schema import resource_providers

#: The traits that an agent's report leaves in place on the root of a disabled host.
_TRAITS_OF_DISABLED = (disabled_hosts.TRAIT,)


@handles(ReportProviders)
def _report_providers(store: Store, message: ReportProviders) -> ProvidersReported:
    def is_stored(connection: Connection) -> bool:
        return store.requests.find(connection, message) is not None

    # Reported custom resource classes and traits are created if missing: the hosts' drivers define them. A repeated
    # report creates none: they may have been deleted since.
    store.classes.ensure({name for one in message.providers for name in one.inventories}, unless=is_stored)
    store.traits.ensure({name for one in message.providers for name in one.traits or ()}, unless=is_stored)
    return store.once(
        message, lambda connection: ProvidersReported(generations=report(connection, message, store.classes))
    )


def report(connection: Connection, message: ReportProviders, names: ResourceClassNames) -> dict[str, int]:
    """Create missing providers, update those that differ, delete those that are gone; return the generations by uuid.

    A provider that already is as reported is not written. The generation of an updated one is bumped once, unless only
    its name has changed.

    :raises InvalidRequest: a provider is reported twice, before its parent, or under another parent than it has.
    :raises ProviderNotFound: a parent does not exist, or a provider whose generation is named does not.
    :raises ProviderGenerationConflict: a provider is at another generation than the one named.
    :raises AlreadyExists: a name belongs to another provider.
    :raises InvalidInventory: naming the provider, as each of the following does.
    :raises InventoryInUse: an inventory with allocations is no longer reported.
    :raises ProviderInUse: a provider that is gone has children or allocations.
    :raises ResourceClassNotFound: a resource class does not exist.
    :raises TraitNotFound: a trait does not exist.
    :raises StaleRead: a concurrent transaction has changed the same providers; a new transaction may succeed.
    """
    _check(message)
    wanted = {one.uuid: inventories.numbered(connection, one.uuid, one.inventories, names) for one in message.providers}
    known = _known(connection, {*wanted, *message.gone, *_parents(message.providers)})
    _compare(message.providers, known)
    # The comparison takes no lock: most reports change nothing, and then nothing is locked.
    new = [one for one in message.providers if one.uuid not in known]
    old = [one for one in message.providers if one.uuid in known]
    renamed = [one for one in old if one.name != known[one.uuid].name]
    changed = _changed(connection, old, wanted, known)
    gone = {known[uuid].id: uuid for uuid in message.gone if uuid in known}
    # Take all locks at once, in the order of ids; then the values compared above must still be the same.
    parents = [known[uuid] for uuid in _parents(new) if uuid in known]
    above = {id_ for parent in parents for id_ in (parent.id, parent.root_id)}
    rows = providers.lock(connection, {*gone, *(known[one.uuid].id for one in renamed + changed), *above})
    for one in renamed + changed:
        row = rows[known[one.uuid].id]
        providers.compare_generation(row, one.generation)
        if not known[one.uuid].stands_as(row):
            raise StaleRead
    # Deletions first and new providers last: a name may pass from a deleted or renamed provider to another one.
    trees.remove(connection, gone)
    renamed_ids = trees.rename(connection, {known[one.uuid].id: one.name for one in renamed})
    created = _create(connection, new)
    ids = created | {one.uuid: known[one.uuid].id for one in old}
    new_filled = [one for one in new if one.inventories or one.traits or one.aggregates]
    filled_ids = _fill(connection, changed + new_filled, wanted, ids, names)
    providers.bump_generations(connection, renamed_ids - filled_ids, by=0)
    providers.bump_generations(connection, filled_ids, by=1)
    change_feed.record(connection, provider_ids={*gone, *created.values(), *renamed_ids, *filled_ids})
    # For a provider that was not written, the generation at which it was compared is returned: a concurrent transaction
    # may have changed it since, and the agent would regard a newer generation as that of its own report.
    filled = {one.uuid for one in changed}
    found = {one.uuid: known[one.uuid].generation for one in old if one.uuid not in filled}
    table = resource_providers.c
    return dict(bulk.pairs(table.uuid, table.generation).rows(connection, sorted(wanted))) | found


# --- Comparison of the report with the store ------------------------------------------------------------------------


def _check(message: ReportProviders) -> None:
    """Refuse a report that contradicts itself."""
    seen: set[tuple[str, str]] = {("uuid", uuid) for uuid in message.gone}
    behind = {one.uuid for one in message.providers}
    for position, one in enumerate(message.providers):
        for field in ("uuid", "name"):
            if (field, getattr(one, field)) in seen:
                raise errors.InvalidRequest(path=f"$.providers[{position}].{field}", reason="reported twice")
            seen.add((field, getattr(one, field)))
        if one.parent_provider_uuid in behind:
            path = f"$.providers[{position}].parent_provider_uuid"
            raise errors.InvalidRequest(path=path, reason="the parent does not stand before it")
        behind.discard(one.uuid)


@dataclass(frozen=True, slots=True)
class _StoredProvider:
    id: int
    name: str
    generation: int
    root_id: int
    parent_id: int | None
    parent_uuid: str | None

    def stands_as(self, row: LockedRow) -> bool:
        """Return whether the row is still the one that the report was compared with.

        A new generation means other content, perhaps that of the report: then nothing is to be written.
        """
        compared = (self.name, self.generation, self.root_id, self.parent_id)
        return compared == (row.name, row.generation, row.root_id, row.parent_id)


def _known(connection: Connection, uuids: Collection[str]) -> dict[str, _StoredProvider]:
    table, parent = resource_providers, resource_providers.alias()
    place = (table.c.root_provider_id, table.c.parent_provider_id, parent.c.uuid)
    query = select(table.c.uuid, table.c.id, table.c.name, table.c.generation, *place)
    query = query.select_from(table.outerjoin(parent, parent.c.id == table.c.parent_provider_id))
    rows = bulk.select_in(connection, query, table.c.uuid, sorted(uuids))
    return {uuid: _StoredProvider(*described) for uuid, *described in rows}


def _parents(reports: Sequence[ProviderReport]) -> set[str]:
    return {one.parent_provider_uuid for one in reports if one.parent_provider_uuid is not None}


def _compare(reports: Sequence[ProviderReport], known: Mapping[str, _StoredProvider]) -> None:
    """Compare the generations and parents that the report names with the stored ones."""
    for position, one in enumerate(reports):
        if one.uuid not in known:
            if one.generation is not None:
                raise errors.ProviderNotFound(name=one.uuid)
            continue
        found = known[one.uuid]
        if one.generation not in (None, found.generation):
            raise errors.ProviderGenerationConflict(
                provider_uuid=one.uuid, named=one.generation, found=found.generation
            )
        if one.parent_provider_uuid != found.parent_uuid:
            where = "a root" if found.parent_uuid is None else f"under {found.parent_uuid}"
            raise errors.InvalidRequest(
                path=f"$.providers[{position}].parent_provider_uuid", reason=f"it is {where}, and no report moves it"
            )


def _changed(
    connection: Connection,
    reports: Sequence[ProviderReport],
    wanted: Mapping[str, Wanted],
    known: Mapping[str, _StoredProvider],
) -> list[ProviderReport]:
    """Return the reports of providers whose inventories, traits or aggregates differ from the stored ones."""
    ids = [known[one.uuid].id for one in reports]
    held = providers.inventories_of(connection, ids)
    held_traits, held_aggregates = traits.of(connection, ids), aggregates.of(connection, ids)
    # Aggregates and traits that a provider has because of its host are not removed by a report.
    staying = host_aggregate_links.required(connection, ids)
    disabled = disabled_hosts.among(connection, ids)
    return [
        one
        for one, id_ in zip(reports, ids, strict=True)
        if inventories.differ(held.get(id_, {}), wanted[one.uuid])
        or _differ(held_traits.get(id_, []), one.traits, _TRAITS_OF_DISABLED if id_ in disabled else ())
        or _differ(held_aggregates.get(id_, []), one.aggregates, staying.get(id_, ()))
    ]


def _differ(present: Collection[str], reported: Collection[str] | None, staying: Collection[str] = ()) -> bool:
    return reported is not None and set(present) != {*reported, *staying}


# --- Writing --------------------------------------------------------------------------------------------------------


def _create(connection: Connection, new: Sequence[ProviderReport]) -> dict[str, int]:
    """Create the missing providers; a concurrent report may have created them since they were read."""
    try:
        return new_providers.create(
            connection, [NewProvider(one.uuid, one.name, one.parent_provider_uuid) for one in new]
        )
    except errors.AlreadyExists as fault:
        if _known(connection, {one.uuid for one in new}):
            raise StaleRead from fault
        raise


def _fill(
    connection: Connection,
    reports: Sequence[ProviderReport],
    wanted: Mapping[str, Wanted],
    ids: Mapping[str, int],
    names: ResourceClassNames,
) -> set[int]:
    """Replace the inventories, traits and aggregates of providers by the reported ones; return their ids."""
    inventories.replace(connection, {ids[one.uuid]: wanted[one.uuid] for one in reports}, names)
    reported = {ids[one.uuid]: one.traits for one in reports if one.traits is not None}
    disabled = disabled_hosts.among(connection, reported)
    traits.replace(
        connection,
        {id_: {*found, *(_TRAITS_OF_DISABLED if id_ in disabled else ())} for id_, found in reported.items()},
    )
    aggregates.replace(connection, {ids[one.uuid]: one.aggregates for one in reports if one.aggregates is not None})
    return {ids[one.uuid] for one in reports}
