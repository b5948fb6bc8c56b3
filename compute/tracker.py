"""The resource tracker: reports changes of the hosts' provider trees to the store, after a reshape if one is needed.

It caches each host's provider tree as last read from the store, so that a report without a change reads and sends
nothing. It never writes allocations: in a reshape, the placement role moves them in one transaction with inventories.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from compute.cell_client import AT_FAULT, CellClient
from compute.cell_messages import halves, in_batches
from compute.driver import Driver, ReshapeNeeded
from compute.numbering import Numbering
from compute.provider_tree import ProviderTree
from compute.tree_changes import TreeChange, compare
from moorage import context, errors
from moorage.messages import ListProviderTreesInCell, ProvidersReported, ReportProviderTree, ReshapeProviderTree
from moorage.model import HostReport, MoveInstruction, ResourceProvider

LOG = logging.getLogger(__name__)

# The most trees in one read, and the most providers in one report; a message may have twice as many. Arbitrary.
_AT_ONCE = 500
# Tries for one host within one report. A try fails if a generation was bumped meanwhile, for instance by a claim.
# Arbitrary: each try takes a fraction of a second.
_TRIES = 5
# Seconds to wait for one answer; see `compute.reports`.
_PATIENCE = 5.0
# Seconds after which a report begins no more reshapes: the hosts that are done count as up before the others are begun.
_RESHAPING_SECONDS = 10.0


class Tracker:
    """Caches and reports the provider trees of an agent's hosts.

    :param reshape_at_any_report: whether a reshape is allowed after the first report of a host since the agent's start.
    """

    def __init__(
        self,
        driver: Driver,
        cell: CellClient,
        numbering: Numbering,
        *,
        reshape_at_any_report: bool = False,
        reshaping_seconds: float = _RESHAPING_SECONDS,
    ) -> None:
        self._driver = driver
        self._cell = cell
        self._numbering = numbering
        self._ended = threading.Event()
        self._reshape_at_any_report = reshape_at_any_report
        self._reshaping_seconds = reshaping_seconds
        #: Keyed by the uuid of the host's compute node, like the next two.
        self._trees: dict[str, ProviderTree] = {}
        self._reported: set[str] = set()
        self._refused_reshapes: dict[str, tuple[MoveInstruction, ...]] = {}
        #: The names of the hosts that were refused in the last report; and those in the current report so far.
        self.refused: frozenset[str] = frozenset()
        self._refused_so_far: set[str] = set()

    def track(self, hosts: Sequence[HostReport]) -> None:
        """Report all differences of hosts from the store's trees once; the next call reports the refused ones again.

        :raises Interrupted: the agent stops.
        :raises MoorageError: the trees cannot be read.
        """
        self._refused_so_far = set()
        self._read([host for host in hosts if host.compute_node_uuid not in self._trees])
        self._carry_out(self._changes(hosts), _TRIES)
        self.refused = frozenset(self._refused_so_far)

    def stop(self) -> None:
        """Repeat no more messages: an unanswered one ends with :class:`Interrupted`."""
        self._ended.set()

    def is_reported(self, host: HostReport) -> bool:
        """Return whether this host's tree was reported since the agent's start."""
        return host.compute_node_uuid in self._reported

    def forget(self, hosts: Sequence[HostReport] | None = None) -> None:
        """Drop cached trees: they are read again with the next call of :meth:`track`.

        :param hosts: those that the schedulers have lost, perhaps with their providers; by default all.
        """
        if hosts is None:
            self._trees.clear()
            return
        for host in hosts:
            self._trees.pop(host.compute_node_uuid, None)
            self._reported.discard(host.compute_node_uuid)

    def _read(self, hosts: Sequence[HostReport]) -> None:
        for batch in in_batches(hosts, _AT_ONCE):
            self._read_together(batch)

    def _read_together(self, hosts: Sequence[HostReport]) -> None:
        """Read trees by one message, or by several if they do not fit into one answer; skip one that is too large."""
        nodes = tuple(host.compute_node_uuid for host in hosts)
        try:
            message = ListProviderTreesInCell(uuids=nodes)
            found = self._cell.unless_ended(message, self._ended, timeout=_PATIENCE)
        except errors.ReplyTooLarge as fault:
            if len(hosts) == 1:
                LOG.error("The providers of host %s cannot be read: %s", hosts[0].service_host, fault)
                self._refused_so_far.add(hosts[0].service_host)
                self._trees.pop(nodes[0], None)
                return
            for half in halves(hosts):
                self._read_together(half)
        else:
            self._trees.update(_by_node(nodes, found))

    def _changes(self, hosts: Sequence[HostReport]) -> list[TreeChange]:
        """Return the changes of the hosts whose driver describes another tree than the store has."""
        found = (self._change_of(host) for host in hosts if host.compute_node_uuid in self._trees)
        return [change for change in found if change is not None]

    def _change_of(self, host: HostReport) -> TreeChange | None:
        try:
            change = self._described(host, self._trees[host.compute_node_uuid])
        except Exception:  # must not block the other hosts
            LOG.exception(
                "The driver does not describe host %s; it is asked again for the next report", host.service_host
            )
            return None
        if change.instructions:
            return change
        self._refused_reshapes.pop(host.compute_node_uuid, None)
        if change:
            return change
        self._reported.add(host.compute_node_uuid)
        return None

    def _described(self, host: HostReport, before: ProviderTree) -> TreeChange:
        """Return the difference between a host's tree and the tree that its driver describes."""
        after = before.copy()
        try:
            self._driver.update_provider_tree(host, after)
        except ReshapeNeeded as needed:
            return compare(host, before, after, tuple(needed.instructions), tuple(needed.dealt))
        return compare(host, before, after)

    def _carry_out(self, changes: Sequence[TreeChange], tries: int) -> None:
        """Report the changes without a reshape in batches of hosts; then carry out the reshapes, host by host."""
        plain = [change for change in changes if not change.instructions]
        for batch in in_batches(plain, _AT_ONCE, len):
            self._report(batch, tries)
        waiting = [change for change in changes if change.instructions and self._may_reshape(change)]
        begun = time.monotonic()
        for done, change in enumerate(waiting):
            if done and time.monotonic() - begun > self._reshaping_seconds:
                LOG.info("The reshapes of %d host(s) come with the next report", len(waiting) - done)
                return
            self._reshape(change, tries)

    def _redo(self, changes: Sequence[TreeChange], tries: int) -> None:
        hosts = [change.host for change in changes]
        self._read(hosts)
        self._carry_out(self._changes(hosts), tries)

    def _report(self, changes: Sequence[TreeChange], tries: int) -> None:
        """Report a batch; halve a refused one, so that one bad host does not block the others."""
        message = self._numbering.message(
            ReportProviderTree,
            providers=tuple(report for change in changes for report in change.reports),
            gone=tuple(uuid for change in changes for uuid in change.gone),
        )
        try:
            with context.bound(request_id=message.request_id):
                answer = self._cell.unless_ended(message, self._ended, timeout=_PATIENCE)
        except errors.ProviderGenerationConflict as conflict:
            LOG.info("The inventories of hosts are read again: %s", conflict)
            self._after_conflict(changes, tries, conflict)
        except AT_FAULT as refusal:
            if len(changes) == 1:
                self._give_up(changes[0], refusal)
                return
            for half in halves(changes):
                self._report(half, tries)
        else:
            self._note(changes, answer)

    def _after_conflict(
        self, changes: Sequence[TreeChange], tries: int, conflict: errors.ProviderGenerationConflict
    ) -> None:
        """Read again and retry, in halves: in a large batch, claims would bump some generation every time."""
        if len(changes) > 1:
            for half in halves(changes):
                self._redo(half, tries)
        elif tries > 1:
            self._redo(changes, tries - 1)
        else:
            self._give_up(changes[0], conflict)

    def _note(self, changes: Sequence[TreeChange], answer: ProvidersReported) -> None:
        for change in changes:
            node = change.host.compute_node_uuid
            change.tree.set_generations(answer.generations)
            if all(report.uuid in answer.generations for report in change.reports):
                self._trees[node] = change.tree
            else:  # a placement role of an earlier release sends no generations
                self._trees.pop(node)
            self._reported.add(node)

    def _give_up(self, change: TreeChange, why: Exception) -> None:
        LOG.error(
            "The providers of host %s were refused; they are sent again with the next report: %s", _name(change), why
        )
        self._refused_so_far.add(change.host.service_host)
        # The cached tree may be wrong: it is read again.
        self._trees.pop(change.host.compute_node_uuid, None)

    # --- Reshapes ---------------------------------------------------------------------------------------------------

    def _may_reshape(self, change: TreeChange) -> bool:
        """Return whether a reshape is allowed now; if it is not, the host keeps its reported tree."""
        node = change.host.compute_node_uuid
        if self._reshape_at_any_report or node not in self._reported:
            return True
        if self._refused_reshapes.get(node) != change.instructions:  # logged once, not at each report
            self._refused_reshapes[node] = change.instructions
            LOG.error(
                "The driver asks to reshape the providers of host %s, which is done when its agent starts. Nothing is "
                "reported until then: restart the agent, or set [compute] reshape_at_any_report",
                _name(change),
            )
        return False

    def _reshape(self, change: TreeChange, tries: int) -> None:
        """Reshape the tree in the store, then read it again and report the remaining changes."""
        if tries < 1:
            LOG.error(
                "The driver requests reshapes of host %s again and again; it is asked at the next report", _name(change)
            )
            return
        message = self._numbering.message(
            ReshapeProviderTree, instructions=change.instructions, providers=change.children, dealt=change.dealt
        )
        try:
            with context.bound(request_id=message.request_id):
                plan = self._cell.unless_ended(message, self._ended)
        except errors.MoorageError as refusal:
            self._give_up(change, refusal)
            self._inform(change, partial(self._driver.reshape_refused, change.host, refusal))
            return
        except (TypeError, ValueError) as fault:  # a fault of the driver: its reshape cannot be encoded
            self._give_up(change, fault)
            return
        self._inform(change, partial(self._driver.reshaped, change.host, plan))
        LOG.info(
            "The providers of host %s are reshaped: %d new, %d allocation(s) moved",
            _name(change),
            len(plan.created),
            len(plan.dealt),
        )
        self._redo([change], tries - 1)

    def _inform(self, change: TreeChange, call: Callable[[], None]) -> None:
        """Call the driver back; its faults are only logged."""
        try:
            call()
        except Exception:  # must not block the other hosts
            LOG.exception("The driver has failed to record the reshape of host %s", _name(change))

    def wanted_reshapes(self, hosts: Sequence[HostReport]) -> list[TreeChange]:
        """Return the reshapes that the driver wants of these hosts now, and change nothing.

        :raises Interrupted: the tracker was stopped.
        """
        self._read(hosts)
        return [change for change in self._changes(hosts) if change.instructions]


def _name(change: TreeChange) -> str:
    return change.host.service_host


def _by_node(nodes: Sequence[str], found: Sequence[ResourceProvider]) -> dict[str, ProviderTree]:
    """Return the tree of each node: an empty one if the store does not have it."""
    records: dict[str, list[ResourceProvider]] = {}
    for record in found:
        records.setdefault(record.root_provider_uuid, []).append(record)
    roots = {record.uuid: record.root_provider_uuid for record in found}
    return {node: ProviderTree.of(records[roots[node]] if node in roots else ()) for node in nodes}
