"""Benchmark of the store alone: claims on arbitrary hosts, written by the claim writer of a scheduler."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from harness.arguments import Servers
from harness.audit import Verdict, judge
from harness.bench.load import Load, Measured, Operation
from harness.bench.load import measure as measured_load
from harness.bench.requests import Request
from harness.bench.store import LARGE, Say, create_cell, environment, fake_hosts, fill
from harness.bench.usage import cpu_seconds
from harness.cloud import CloudSpec, created_schemas
from moorage import errors
from moorage.batches import Batches, BatchItem
from moorage.db.database import Database
from moorage.messages import SelectDestinations
from moorage.model import UNSUFFIXED, AllocationRequest, ProviderAmounts
from moorage.service.stored_requests import StoredRequests
from placement_store.schema import MAIN
from placement_store.schema import requests as request_table
from scheduler.decide.choosing import HostChoice
from scheduler.decide.claim_writer import ClaimRefused, ClaimWriter, PlannedRequest
from scheduler.decide.environment import DecisionPolicy
from scheduler.decide.planner import DestinationPlan
from scheduler.view.snapshot import Snapshot

#: The maximum number of requests in one transaction: as many as a scheduler decides together.
_TOGETHER = 32


def measure(servers: Servers, hosts: int, per_request: int, load: Load, say: Say) -> tuple[Measured, Verdict]:
    """Fill an empty database with hosts, and measure claims; return the measurement and the verdict on the store.

    The database is empty again afterwards.

    :raises ConfigurationError: the database is not empty.
    """
    url, request = str(servers.database_url), Request(per_request, alternates=0)
    with closing(Database(url, MAIN.name)) as database, created_schemas(database, CloudSpec(hosts=0, cells=0)):
        create_cell(database)
        fill(database, range(hosts), fake_hosts(LARGE))
        say(f"measuring for {load.seconds:g} s")
        measured = measured_load(load, _clients, url, request, cpu=lambda: cpu_seconds(servers.pids))
        verdict = judge(database, measured.created)
    refused = dict(measured.refused)
    conflicts = refused.pop(errors.ClaimContention.code, 0)
    return replace(measured, refused=refused, conflicts=conflicts), verdict


@contextmanager
def _clients(url: str, request: Request) -> Iterator[Callable[[int], Operation]]:
    """Yield clients that share a writer, as the threads of a scheduler do."""
    with closing(Database(url, MAIN.name)) as database:
        decided = environment(database, DecisionPolicy((), ()))
        view = decided.host_cache.snapshot()
        writer = ClaimWriter(StoredRequests(database, request_table), decided.names)
        batches: Batches[PlannedRequest, None] = Batches(partial(_write, writer), _TOGETHER)

        def client(number: int) -> Operation:
            drawn = random.Random(number)

            def claim() -> tuple[str, ...]:
                message = request.message()
                rows = drawn.choices(range(len(view)), k=request.per_request)
                batches.do(PlannedRequest(message, _plan(view, message, rows)))
                return message.instance_uuids

            return claim

        yield client


def _write(writer: ClaimWriter, batch: Sequence[BatchItem[PlannedRequest, None]]) -> None:
    """Write claims that arrive together in one transaction.

    :raises ClaimContention: the store has refused one of them; a scheduler would plan that request again.
    """
    planned = [item.value for item in batch]
    try:
        if len(planned) == 1:
            writer.write(planned[0])
        else:
            writer.write_together(planned)
    except ClaimRefused as refusal:
        raise errors.ClaimContention(tries=1) from refusal
    for item in batch:
        item.succeed(None)


def _plan(view: Snapshot, message: SelectDestinations, rows: list[int]) -> DestinationPlan:
    """Return a plan without a decision: one instance for the host of each of these rows."""
    amounts = ProviderAmounts(resources=message.request_spec.resources)
    nodes = [view.hosts[row].compute_node_uuid for row in rows]
    chosen = [
        HostChoice(row, 0.0, AllocationRequest(allocations={node: amounts}, mappings={UNSUFFIXED: (node,)}))
        for row, node in zip(rows, nodes, strict=True)
    ]
    return DestinationPlan(view, chosen, [[] for _ in chosen])
