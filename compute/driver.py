"""The driver contract between an agent and its hypervisors, and the loading of a driver."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import stevedore
from oslo_config import cfg
from stevedore.exception import NoMatches

from compute.provider_tree import ProviderTree
from moorage import errors
from moorage.messages import MovingGuest
from moorage.model import (
    AllocationRequest,
    Guest,
    HostReport,
    Image,
    MoveInstruction,
    Reallocation,
    RequestSpec,
    ReshapePlan,
    Resources,
)

ENTRY_POINTS = "moorage.drivers"


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """The specification of a guest to spawn: its ids, its resources, and the request."""

    instance_uuid: str
    #: One try on one host: everything started for it can be identified by this alone.
    attempt_id: str
    #: The claim under which it was started; kept with the guest for as long as it stays on its host.
    claim_id: str
    request_spec: RequestSpec
    resources: Resources
    #: The providers, of the host and of pools that share with it, that serve each resource group of the request; null
    #: where all comes from the compute node.
    allocation_request: AllocationRequest | None = None
    #: The source of a moved guest; null for a new one. A live migration's arrives running, and :meth:`Driver.admit` is
    #: its pre-check; any other's was stopped on its source, or is on a host that is down. The source may be this very
    #: host: the old guest is another attempt's, and keeps its amounts until it is destroyed.
    moving: MovingGuest | None = None
    #: The claimed node of the host, as named by :meth:`Driver.hosts`: of several nodes, the guest is made on this one.
    #: Null from a cell conductor of a former release.
    node: str | None = None


@dataclass(frozen=True, slots=True)
class GuestOrder:
    """An order to a guest: to stop, start or rebuild it."""

    #: Kept with the guest: an order that was carried out is not carried out again, nor is one after a later order.
    order_id: str
    instance_uuid: str
    attempt_id: str
    claim_id: str
    #: Grows with each order: a new order with a smaller number than another one of the same guest comes too late.
    #: Null from a cell of a former release.
    number: int | None = None


class ReshapeNeeded(Exception):
    """A driver has restructured a tree with possible allocations, which needs a reshape and not a report.

    The reshape is carried out when the agent starts, and later only with ``[compute] reshape_at_any_report``.

    :param instructions: the moves between providers; :func:`compute.tree_changes.moves` finds them by comparing trees.
    :param dealt: the new allocations of these consumers, with providers named by uuid or name; one allocation may be
        split. The consumer of a guest is its instance, or its migration while a move waits on its source. Allocations
        of consumers that are not named are distributed so that each fits whole.
    """

    def __init__(self, instructions: Sequence[MoveInstruction], dealt: Sequence[Reallocation] = ()) -> None:
        super().__init__(instructions, dealt)
        self.instructions = instructions
        self.dealt = dealt


class Driver(ABC):
    """The hosts of one agent.

    The driver keeps the state across restarts of the agent: ``attempt_id`` and ``claim_id`` with each guest, and the
    destroyed attempts for as long as a message about them may still arrive. That makes spawn and destroy idempotent,
    and a late spawn harmless. Methods are called from many threads at once, but for one attempt never two destroys,
    nor two of spawn, :meth:`stop_guest`, :meth:`start_guest` and :meth:`rebuild_guest`; a destroy may come while one of
    those is in progress. Every method with a host raises :class:`~moorage.errors.HostNotFound` for one that is not the
    driver's, and :class:`~moorage.errors.NoReply` for an action on a host that does not answer.
    """

    def __init__(self, conf: cfg.ConfigOpts, agent: str, cell_name: str) -> None:
        self.conf = conf
        self.agent = agent
        self.cell_name = cell_name

    def start(self) -> None:  # noqa: B027 - most drivers have nothing to open
        """Open what the driver needs; called once, before anything else."""

    def close(self) -> None:  # noqa: B027 - most drivers have nothing to close
        """Close what was opened; guests stay. A second call does nothing."""

    @abstractmethod
    def hosts(self) -> Sequence[HostReport]:
        """Return the description of every host, alive or not. Called at each report: answer from memory."""

    @abstractmethod
    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """Change a tree of resource providers to the present one of ``host``; its root uuid is ``compute_node_uuid``.

        The tree is given as last read from the store, empty for a host that the store does not have. Providers that the
        driver does not change stay; a tree that is right is left as it is. At most 1,000 providers. Called at each
        report and again after a generation conflict: answer from memory, and the same for the same.

        A host whose tree stays empty is asked to report its providers every minute.

        :raises ReshapeNeeded: allocations have to be moved between these providers first. ``tree`` is then the final
            tree: its new providers are created for the move.
        """

    def reshaped(self, host: HostReport, plan: ReshapePlan) -> None:  # noqa: B027 - optional for drivers
        """Note that a reshape of ``host`` was done: the providers created, and the place of each allocation."""

    def reshape_refused(  # noqa: B027 - optional for drivers
        self, host: HostReport, refusal: errors.MoorageError
    ) -> None:
        """Note that a reshape of ``host`` was refused and nothing has changed.

        :class:`~moorage.errors.ImpossibleDeal` names a consumer whose allocation fits nowhere whole: at the next
        report the driver may give its places itself (``dealt``).
        """

    @abstractmethod
    def alive(self) -> Collection[str]:
        """Return the names of the hosts that can take work now."""

    def has_host(self, host: str) -> bool:
        """Return whether ``host`` is one of the driver's."""
        return any(host == report.service_host for report in self.hosts())

    def has_node(self, host: str, node: str) -> bool:
        """Return whether ``node`` is one of the nodes of ``host``."""
        return any((host, node) == (report.service_host, report.nodename) for report in self.hosts())

    def is_alive(self, host: str) -> bool:
        """Return whether ``host`` can take work now."""
        return host in self.alive()

    def admit(self, host: str, guest: GuestSpec) -> None:  # noqa: B027 - a driver may check in spawn alone
        """Refuse a guest that cannot run on this host, without starting anything; called before the claim is accepted.

        :raises BuildFailed: the host does not take the guest, with the reason.
        :raises BuildImpossible: as :meth:`spawn`.
        """

    @abstractmethod
    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Start a guest and return once it runs; one that this attempt has started already is left as it is.

        So is one that was stopped since: it stays stopped.

        :raises BuildFailed: it could not be started, or this attempt has been destroyed, also meanwhile. Pieces of it
            may be left for :meth:`destroy`.
        :raises BuildImpossible: it could not be started because of the request, for instance of a broken image: the
            build ends in error, and no other host is tried.
        """

    @abstractmethod
    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        """Remove everything of an attempt from ``host``, if there is anything, and refuse its spawn from now on.

        On return nothing of it is left, it holds nothing of the host, and a spawn in progress ends with
        :class:`~moorage.errors.BuildFailed`.

        :raises RequestInProgress: its spawn is in progress and cannot be cut short; call again when that has ended.
        :raises InvalidState: the attempt's guest was started under another claim; it is left alone.
        """

    @abstractmethod
    def stop_guest(self, host: str, order: GuestOrder) -> None:
        """Stop a guest, and return when it no longer runs; one that does not run is left as it is.

        It keeps all its resources, and stays stopped until it is started or rebuilt, also across restarts of the agent.

        As in the two methods below, a repeated order is carried out once, or again where it had failed or was cut
        short; an order that comes after a later one is refused, so that a late message changes nothing. For that the
        driver keeps the ids of a guest's orders, and the greatest order number, for as long as the guest.

        :raises InvalidState: this attempt has no guest here that was ever started, its guest is another claim's, or a
            later order has been begun.
        :raises GuestActionFailed: the order failed, or the guest was destroyed meanwhile.
        """

    @abstractmethod
    def start_guest(self, host: str, order: GuestOrder) -> None:
        """Start a guest that was stopped, and return when it runs; one that runs is left as it is.

        :raises InvalidState: as :meth:`stop_guest`.
        :raises GuestActionFailed: it could not be done, or the guest was destroyed meanwhile.
        """

    @abstractmethod
    def rebuild_guest(self, host: str, order: GuestOrder, image: Image) -> None:
        """Rebuild a guest in place from ``image``, and return when it runs, whether or not it ran before.

        It keeps its resources, under the same attempt and claim. After a failure the guest exists and does not run: it
        is neither unfinished nor lost, but can be rebuilt again, or destroyed.

        :raises InvalidState: as :meth:`stop_guest`.
        :raises GuestActionFailed: the order failed, or the guest was destroyed meanwhile.
        """

    @abstractmethod
    def guests(self, host: str) -> Sequence[Guest]:
        """Return the guests on a host, including stopped, half made and half removed ones."""

    @abstractmethod
    def unfinished(self, host: str) -> Collection[str]:
        """Return the attempts of the guests on a host that do not run because their spawn did not complete."""

    @abstractmethod
    def stopped(self, host: str) -> Collection[str]:
        """Return the attempts of the guests on a host that do not run because of an order; never unfinished ones."""


def load(conf: cfg.ConfigOpts, agent: str, cell_name: str) -> Driver:
    """Return the driver that ``[compute] driver`` names, not yet started.

    :raises UnknownPlugin: no entry point of `moorage.drivers` has that name.
    :raises ConfigurationError: it exists and cannot be loaded.
    """
    name = conf.compute.driver

    def refuse(_manager: object, _entry_point: object, fault: BaseException) -> None:
        raise errors.ConfigurationError(reason=f"the compute driver {name} cannot be loaded: {fault}") from fault

    try:
        kind: Callable[..., Driver] = stevedore.DriverManager(
            ENTRY_POINTS, name, on_load_failure_callback=refuse
        ).driver
    except NoMatches as fault:
        known = ", ".join(sorted(stevedore.ExtensionManager(ENTRY_POINTS).entry_points_names()))
        raise errors.UnknownPlugin(kind="compute driver", name=name, known=known or "none") from fault
    return kind(conf, agent, cell_name)
