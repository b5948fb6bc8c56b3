"""Stores filled with hosts, without agents, and the environment in which a scheduler decides on such a store."""

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from typing import Any

import os_traits
from sqlalchemy import Connection

from compute.fake.layout import FakeLayout
from compute.provider_tree import ProviderTree
from compute.tree_changes import compare
from moorage import ids
from moorage.config import options
from moorage.db.database import Database
from moorage.messages import ReportHosts, ReportProviders
from moorage.model import HostReport, Inventory, ProviderReport
from moorage.service.process import long_lived
from placement_store import cells
from placement_store.claims import claim as claims
from placement_store.claims.claim import NewClaim
from placement_store.db import names
from placement_store.db.names import ResourceClassNames
from placement_store.providers import report as provider_reports
from placement_store.providers import rows as providers
from placement_store.providers.rows import ProviderRow
from placement_store.schema import MAIN
from scheduler.decide.environment import DecisionEnvironment, DecisionPolicy
from scheduler.registry import reports
from scheduler.view.follower import Follower
from scheduler.view.host_cache import HostCache

#: The options of the fake driver for hosts that no measurement fills, and for hosts that are filled to a percentage:
#: these have room for 256 instances of the benchmarks' size.
LARGE: Mapping[str, int] = {"vcpus": 100_000, "memory_mb": 100_000_000, "disk_gb": 1_000_000}
ORDINARY: Mapping[str, int] = {"vcpus": 256, "memory_mb": 131_072, "disk_gb": 256}
#: Puts the processors and memory of a host into NUMA nodes, which are child providers.
NESTED: Mapping[str, int] = {"numa_nodes": 2}

#: A host and its providers, parents before their children.
DescribedHost = tuple[HostReport, Sequence[ProviderReport]]
#: Describes the host with a number.
Describe = Callable[[int], DescribedHost]
#: Shows what a run is doing.
Say = Callable[[str], None]

_CELL = ids.derived("bench", "cell")
#: The provider that shares disks, and the aggregate of the providers that use them.
_POOL, _MEMBERS = ids.derived("bench", "pool"), ids.derived("bench", "members of the pool")
_TOGETHER = 500
#: The number of hosts that a separate process reports before it shows its progress.
_SHOWN = 5_000


def host_settings(
    occupancy: float | None, *, nested: bool, traits: int = 0, devices: int = 0, pool: bool = False
) -> dict[str, Any]:
    """Return the options of the fake driver for the hosts of a measurement.

    :param occupancy: the percentage to which :func:`occupy` is going to fill them; null for hosts that nothing fills.
    :param traits: the number of traits of each host; all hosts have the same ones.
    :param devices: the number of devices of each host, which are child providers.
    :param pool: whether one sharing provider has the disks of all hosts.
    """
    settings: dict[str, Any] = {**(LARGE if occupancy is None else ORDINARY), **(NESTED if nested else {})}
    if pool:
        settings["shared_disk_aggregate"] = _MEMBERS
    if devices:
        settings["gpus"] = devices
    if traits:
        settings["traits"] = os_traits.get_traits("HW_")[:traits]
    return settings


# --- Filling --------------------------------------------------------------------------------------------------------


def create(database: Database) -> None:
    """Create the main schema and a cell for the hosts in an empty database."""
    MAIN.upgrade(database)
    create_cell(database)


def create_cell(database: Database) -> None:
    """Create the cell of the hosts, and all standard names, in a database with the main schema."""
    names.sync(database)
    cells.create(database, name="bench", uuid=_CELL)


def fake_hosts(settings: Mapping[str, Any]) -> Describe:
    """Return a function that describes hosts as the fake driver would with these options."""
    layout = FakeLayout(options.new({"fake_driver": settings}).fake_driver)

    def described(number: int) -> DescribedHost:
        host = HostReport(
            service_host=f"host{number}",
            nodename=f"host{number}",
            compute_node_uuid=ids.derived("bench", "node", number),
            agent="bench",
            availability_zone="nova",
        )
        tree = ProviderTree()
        layout.update(host, tree)
        return host, compare(host, ProviderTree(), tree).reports

    return described


def fill(database: Database, numbers: range, describe: Describe) -> None:
    """Report the hosts with these numbers as alive, as their cell would."""
    for start in range(0, len(numbers), _TOGETHER):
        described = [describe(number) for number in numbers[start : start + _TOGETHER]]
        report(database, [one for _, parts in described for one in parts])
        message = ReportHosts(
            request_id=ids.fresh(),
            cell_uuid=_CELL,
            hosts=tuple(host for host, _ in described),
            alive=tuple(host.service_host for host, _ in described),
        )
        database.write(lambda connection, message=message: reports.write(connection, message))  # type: ignore[misc]


def report(database: Database, providers: Sequence[ProviderReport]) -> None:
    """Report providers, as a cell would those of its hosts."""
    message = ReportProviders(request_id=ids.fresh(), providers=tuple(providers))
    known = ResourceClassNames(database)
    database.write(lambda connection: provider_reports.report(connection, message, known))


def fill_apart(url: str, settings: Mapping[str, Any], hosts: int, occupancy: float | None, say: Say) -> None:
    """Fill an empty SQLite file in a separate process, so that the memory of this process does not grow."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:

        def do(work: Callable[..., object], *arguments: object) -> None:
            process.submit(_on_database, url, work, *arguments).result()

        do(create)
        if settings.get("shared_disk_aggregate"):
            do(_create_pool, settings["disk_gb"] * hosts)
        for start in range(0, hosts, _SHOWN):
            say(f"storing hosts: {start:,} of {hosts:,}")
            do(_fill, settings, range(start, min(start + _SHOWN, hosts)))
        if occupancy is not None:
            say(f"filling hosts to {occupancy:g} %")
            do(occupy, occupancy)


def _on_database(url: str, work: Callable[..., object], *arguments: object) -> None:
    with closing(Database(url, MAIN.name)) as database:
        work(database, *arguments)


def _create_pool(database: Database, disk_gb: int) -> None:
    pool = ProviderReport(
        uuid=_POOL,
        name="pool",
        inventories={"DISK_GB": Inventory(total=disk_gb)},
        traits=(os_traits.MISC_SHARES_VIA_AGGREGATE,),
        aggregates=(_MEMBERS,),
    )
    report(database, [pool])


def _fill(database: Database, settings: Mapping[str, Any], numbers: range) -> None:
    fill(database, numbers, fake_hosts(settings))


# --- Occupancy ------------------------------------------------------------------------------------------------------


def occupy(database: Database, occupancy: float) -> list[str]:
    """Fill all hosts by claims, one instance on each; return the instances.

    The hosts are filled to different shares around the percentage: the fullest is as far above it as the emptiest is
    below it, and all shares are between 0 and 100.
    """
    known = ResourceClassNames(database)
    trees: dict[int, list[ProviderRow]] = {}
    for row in database.read(lambda connection: providers.rows(connection, None)):
        trees.setdefault(row.root_id, []).append(row)
    shares = _shares(len(trees), occupancy / 100)

    def claimed(connection: Connection, filled: Sequence[tuple[list[ProviderRow], float]]) -> list[str]:
        made = [new for tree, share in filled if (new := _claim(tree, share, known, connection)).allocations]
        claims.claim(connection, made, known)
        return [new.consumer_uuid for new in made]

    todo = list(zip(trees.values(), shares, strict=True))
    instances: list[str] = []
    for start in range(0, len(todo), _TOGETHER):
        part = todo[start : start + _TOGETHER]
        instances += database.write(lambda connection, part=part: claimed(connection, part))  # type: ignore[misc]
    return instances


def _shares(hosts: int, mean: float) -> list[float]:
    """Return shares with this mean, evenly distributed around it, in an order that is the same in every run."""
    reach = min(mean, 1 - mean)
    shares = [mean + reach * ((2 * number + 1) / hosts - 1) for number in range(hosts)]
    random.Random(0).shuffle(shares)
    return shares


def _claim(tree: Sequence[ProviderRow], share: float, known: ResourceClassNames, connection: Connection) -> NewClaim:
    """Return a claim of a share of everything that a host has."""
    amounts = {
        row.uuid: {
            known.name_of(class_id, connection): amount
            for class_id, inventory in row.inventories.items()
            if (amount := int(inventory.capacity * share))
        }
        for row in tree
    }
    [root] = (row.uuid for row in tree if row.id == row.root_id)
    return NewClaim(
        consumer_uuid=ids.fresh(),
        project_id="bench",
        user_id="bench",
        root_provider_uuid=root,
        allocations={uuid: resources for uuid, resources in amounts.items() if resources},
        owner=None,
    )


# --- Deciding -------------------------------------------------------------------------------------------------------


def environment(database: Database, policy: DecisionPolicy) -> DecisionEnvironment:
    """Load a scheduler's view of a store, and return the environment of its decisions."""
    settings = options.new({}).scheduler
    known, host_cache = ResourceClassNames(database), HostCache()
    follower = Follower(database, known, host_cache)
    with long_lived():
        follower.catch_up(follower.now())
    return DecisionEnvironment(
        database,
        known,
        host_cache,
        follower,
        policy,
        aggregates=lambda _begun_after: (),
        max_age=settings.view_max_age,
        max_tries=settings.max_claim_tries,
    )
