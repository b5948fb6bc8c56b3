"""Builders for the tests of the placement store: a store, providers, consumers, and short forms of messages."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import os_resource_classes
import os_traits
from sqlalchemy import func, select

from moorage import errors, ids
from moorage.db.database import Database
from moorage.messages import (
    AcceptClaim,
    Claimed,
    CreateResourceProvider,
    DeleteAllocations,
    GetAllocations,
    GetResourceProvider,
    ListClaims,
    ListResourceProviders,
    PostAllocations,
    PutAllocations,
    Released,
    ReportProviders,
    SetInventories,
    SwapClaim,
)
from moorage.model import (
    AllocationRequest,
    Consumer,
    ConsumerAllocations,
    Inventory,
    Move,
    ProviderAmounts,
    ProviderReport,
    ResourceProvider,
)
from moorage.model.inspection import ClaimState, StoreAudit
from moorage.service.stored_requests import StoredRequests
from placement_store.claims import begin_move
from placement_store.claims import claim as claims
from placement_store.claims.claim import NewClaim
from placement_store.claims.put import Put
from placement_store.db import bulk, names
from placement_store.db.names import ResourceClassNames
from placement_store.dispatcher import Dispatcher
from placement_store.schema import (
    METADATA,
    allocations,
    changes,
    hosts,
    requests,
    resource_classes,
    resource_providers,
    traits,
)
from placement_store.upkeep import audit
from support.databases.statements import executed, listening
from support.placement_store.in_memory import InMemoryPlacement

Amounts = Mapping[str, Mapping[str, int]]
#: The tables of names, with their standard names.
STANDARDS = {resource_classes: {*os_resource_classes.STANDARDS}, traits: {*os_traits.get_traits()}}


class Store:
    """A placement store on a database with the schema, and the calls that its tests need."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.names = ResourceClassNames(database)
        self.dispatcher = Dispatcher(database, self.names)
        self.requests = StoredRequests(database, requests)

    def empty(self) -> None:
        """Delete everything except the six hundred standard names, which take longer to write than most tests."""
        with self.database.engine.connect() as connection, connection.begin():
            connection.execute(resource_providers.update().values(root_provider_id=None, parent_provider_id=None))
            for table in METADATA.sorted_tables:
                rows = table.delete()
                connection.execute(rows.where(table.c.name.startswith("CUSTOM_")) if table in STANDARDS else rows)
            is_complete = all(
                {*connection.scalars(select(table.c.name).where(table.c.deleted.is_(False)))} == standards
                for table, standards in STANDARDS.items()
            )
            for table in () if is_complete else STANDARDS:
                connection.execute(table.delete())
        if not is_complete:
            names.sync(self.database)

    # --- Providers ------------------------------------------------------------------------------------------------

    def provider(
        self,
        name: str | None = None,
        uuid: str | None = None,
        *,
        parent: str | None = None,
        **inventories: int | Inventory,
    ) -> str:
        """Create a provider, with inventories given as a total or in full; return its uuid."""
        uuid = uuid or ids.fresh()
        self.dispatcher.call(
            CreateResourceProvider(
                request_id=ids.fresh(), uuid=uuid, name=name or f"provider {uuid}", parent_provider_uuid=parent
            )
        )
        if inventories:
            self.set_inventories(uuid, 0, **inventories)
        return uuid

    def set_inventories(self, uuid: str, generation: int, **inventories: int | Inventory) -> ResourceProvider:
        self.ensure_classes(inventories)
        described = {n: Inventory(total=i) if isinstance(i, int) else i for n, i in inventories.items()}
        return self.dispatcher.call(
            SetInventories(request_id=ids.fresh(), uuid=uuid, generation=generation, inventories=described)
        )

    def ensure_classes(self, names: Iterable[str]) -> None:
        self.names.ensure(names)

    def report(self, *reports: ProviderReport, gone: Sequence[str] = ()) -> dict[str, int]:
        """Report providers and return their generations."""
        message = ReportProviders(request_id=ids.fresh(), providers=reports, gone=tuple(gone))
        return self.dispatcher.call(message).generations

    def register_host(self, node_uuid: str, **columns: Any) -> None:
        """Register a host with this compute node for the scheduler."""
        row = {
            "cell_uuid": ids.derived("cell"),
            "service_host": node_uuid,
            "nodename": node_uuid,
            "compute_node_uuid": node_uuid,
            "agent": "agent",
            "availability_zone": "nova",
            "attributes": b"{}",
            "up": True,
        }
        stamps = ["heartbeat_at", "created_at", "updated_at"]
        self.database.write(lambda connection: bulk.insert(connection, hosts, [row | columns], stamps=stamps))

    def uuid_of(self, name: str) -> str:
        return str(self.scalar(select(resource_providers.c.uuid).where(resource_providers.c.name == name)))

    def get(self, uuid: str) -> ResourceProvider:
        return self.dispatcher.call(GetResourceProvider(uuid=uuid))

    def used(self, uuid: str) -> dict[str, int]:
        return self.get(uuid).used

    def generation(self, uuid: str) -> int:
        return self.get(uuid).generation

    def seq(self, uuid: str) -> int:
        return int(self.scalar(select(resource_providers.c.seq).where(resource_providers.c.uuid == uuid)))

    # --- Consumers ------------------------------------------------------------------------------------------------

    def consumer(self, uuid: str) -> Consumer:
        return self.dispatcher.call(GetAllocations(consumer_uuid=uuid))

    def held(self, uuid: str) -> dict[str, dict[str, int]]:
        return {provider: dict(part.resources) for provider, part in self.consumer(uuid).allocations.items()}

    def put(self, uuid: str, amounts: Amounts, generation: int | None = None, **more: Any) -> int:
        """Put allocations and return the consumer's generation."""
        message = PutAllocations(
            request_id=ids.fresh(), consumer_uuid=uuid, wanted=self.wanted(amounts, generation, **more)
        )
        return self.dispatcher.call(message).consumer_generation

    def post(self, consumers: Mapping[str, ConsumerAllocations]) -> dict[str, int]:
        answer = self.dispatcher.call(PostAllocations(request_id=ids.fresh(), consumers=dict(consumers)))
        return {uuid: written.consumer_generation for uuid, written in answer.items()}

    @staticmethod
    def wanted(
        amounts: Amounts, generation: int | None = None, relied_on: Mapping[str, int] | None = None, **more: Any
    ) -> ConsumerAllocations:
        return ConsumerAllocations(
            allocations={
                provider: ProviderAmounts(resources=dict(resources), generation=(relied_on or {}).get(provider))
                for provider, resources in amounts.items()
            },
            **{"project_id": "project", "user_id": "user", **more},
            consumer_generation=generation,
        )

    def delete(self, uuid: str, **more: Any) -> Released:
        message = DeleteAllocations(**{"request_id": ids.fresh()} | more, consumer_uuid=uuid)
        return self.dispatcher.call(message)

    # --- Claims ---------------------------------------------------------------------------------------------------

    def claim(self, uuid: str, amounts: Amounts, **more: Any) -> Claimed:
        """Claim for one consumer; the first provider is the host's."""
        return self.claim_all([self.new_claim(uuid, amounts, **more)])[0]

    def claim_all(self, new: Sequence[NewClaim], *, keep_held: bool = False) -> list[Claimed]:
        return self.database.write(lambda connection: claims.claim(connection, new, self.names, keep_held=keep_held))

    def begin_move(self, new: NewClaim, move: Move) -> Claimed:
        return self.database.write(lambda connection: begin_move.begin(connection, new, move, self.names))

    @staticmethod
    def new_claim(uuid: str, amounts: Amounts, **more: Any) -> NewClaim:
        given = {"project_id": "project", "user_id": "user", "owner": "conductor"} | more
        root = given.pop("root", next(iter(amounts)))
        return NewClaim(consumer_uuid=uuid, root_provider_uuid=root, allocations=amounts, **given)

    def swap(self, uuid: str, claim_id: str, released: Amounts, claimed: Amounts, **more: Any) -> Claimed:
        return self.dispatcher.call(self.swap_message(uuid, claim_id, released, claimed, **more))

    @staticmethod
    def swap_message(uuid: str, claim_id: str, released: Amounts, claimed: Amounts, **more: Any) -> SwapClaim:
        return SwapClaim(
            **{"request_id": ids.fresh(), "root_provider_uuid": next(iter(claimed))} | more,
            consumer_uuid=uuid,
            claim_id=claim_id,
            released=request(released),
            claimed=request(claimed),
        )

    def accept(self, uuid: str, claim_id: str, attempt_id: str, host: str = "host") -> None:
        self.dispatcher.call(
            AcceptClaim(request_id=ids.fresh(), consumer_uuid=uuid, claim_id=claim_id, attempt_id=attempt_id, host=host)
        )

    def listed(self, **wanted: Any) -> list[ClaimState]:
        return self.dispatcher.call(ListClaims(**wanted))

    # --- Database rows --------------------------------------------------------------------------------------------

    def scalar(self, query: Any) -> Any:
        return self.database.read(lambda connection: connection.scalar(query))

    def rows(self) -> dict[int, tuple[int, int, int, int]]:
        """All allocations by the id of their row."""
        query = select(allocations).order_by(allocations.c.id)
        found = self.database.read(lambda connection: connection.execute(query).all())
        return {row.id: (row.consumer_id, row.resource_provider_id, row.resource_class_id, row.used) for row in found}

    def changes(self) -> int:
        """Return the number of changes in the feed."""
        return int(self.scalar(select(func.count()).select_from(changes)))

    def audit(self) -> StoreAudit:
        return self.database.read(audit.report)

    def age(self, table: str, column: str, seconds: float) -> None:
        """Make all rows of a table older."""
        with self.database.engine.connect() as connection, connection.begin():
            connection.exec_driver_sql(f"UPDATE {table} SET {column} = {column} - {seconds}")

    def is_sound(self) -> bool:
        report = self.audit()
        return not report.overcommitted and not report.drifted


class InMemoryStore(Store):
    """The model in place of a database: for tests that use only the answers to messages."""

    def __init__(self) -> None:
        self.dispatcher = self.placement = InMemoryPlacement()  # type: ignore[assignment]

    def ensure_classes(self, names: Iterable[str]) -> None:
        self.placement.model.classes |= {*names}

    def claim_all(self, new: Sequence[NewClaim], *, keep_held: bool = False) -> list[Claimed]:
        return self.placement.claim_all(new, keep_held=keep_held)

    def begin_move(self, new: NewClaim, move: Move) -> Claimed:
        return self.placement.begin_move(new, move)

    def rows(self) -> dict[Any, Any]:
        """All allocations."""
        return {(uuid, pair): n for uuid, one in self.placement.model.holders.items() for pair, n in one.held.items()}

    def is_sound(self) -> bool:
        model = self.placement.model
        return all((held := model.inventory(pair)) and n <= held.capacity for pair, n in model.used().items())


def node_report(number: int, **totals: int) -> ProviderReport:
    """Describe the node with a number."""
    inventories = {name: Inventory(total=total) for name, total in totals.items()}
    return ProviderReport(uuid=ids.derived("node", number), name=f"node{number:04}", inventories=inventories)


def http_put(amounts: Amounts, generation: Any = None) -> Put:
    """Describe a put as the HTTP API does."""
    return Put(
        amounts=amounts,
        generation=generation,
        described={"project_id": "project", "user_id": "user"},
        described_first={"consumer_type": None, "known_over_rpc": False},
        over_http=True,
    )


def request(amounts: Amounts) -> AllocationRequest:
    return AllocationRequest(
        allocations={provider: ProviderAmounts(resources=dict(resources)) for provider, resources in amounts.items()}
    )


def refusals(caught: Any) -> list[tuple[str, str, int, float]]:
    """Return the full inventories of a caught ``CapacityExceeded``: provider, class, requested and free amount."""
    return [(r["provider_uuid"], r["resource_class"], r["asked"], r["free"]) for r in caught.value.refusals]


# --- Concurrent writers ----------------------------------------------------------------------------------------------


def outcome(write: Callable[[], object]) -> str:
    """Run a write, and return `done` or the name of the error."""
    try:
        write()
    except errors.MoorageError as fault:
        return type(fault).__name__
    return "done"


def at_once(*writes: Callable[[], object]) -> list[str]:
    """Start all of these at the same moment; return `done` or the name of the error for each."""
    gate = threading.Barrier(len(writes))

    def run(write: Callable[[], object]) -> str:
        gate.wait()
        return outcome(write)

    with ThreadPoolExecutor(len(writes)) as threads:
        return list(threads.map(run, writes))


@contextmanager
def call_between(database: Database, after: int, act: Callable[[], object]) -> Iterator[list[str]]:
    """Call a function once, after a database has executed ``after`` more statements; yield the statements.

    :param after: the number of the statement; with 0 the function is not called.
    """
    with executed(database) as statements:

        def count(*_: object) -> None:
            if len(statements) == after:
                act()

        with listening(database.engine, "after_cursor_execute", count):
            yield statements


def assert_trees(store: Store) -> None:
    """Assert that the root of every provider is the one that its parents lead to."""
    found = {one.uuid: one for one in store.dispatcher.call(ListResourceProviders())}
    for provider in found.values():
        above, seen = provider, {provider.uuid}
        while above.parent_provider_uuid is not None:
            above = found[above.parent_provider_uuid]
            assert above.uuid not in seen
            seen.add(above.uuid)
        assert provider.root_provider_uuid == above.uuid
