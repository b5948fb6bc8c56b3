"""What an agent asks of the virtualisation under it: the driver contract, and how a driver is loaded."""

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
    Dealt,
    Guest,
    HostReport,
    Image,
    MoveInstruction,
    RequestSpec,
    ReshapePlan,
    Resources,
)

ENTRY_POINTS = "moorage.drivers"


@dataclass(frozen=True, slots=True)
class GuestSpec:
    """A guest to be: who it is, what it holds of its host, and what was asked for."""

    instance_uuid: str
    #: One try on one host: whatever is started for it can be named by this alone.
    attempt_id: str
    #: The claim under which it was started; kept with the guest for as long as it stays on its host.
    claim_id: str
    request_spec: RequestSpec
    resources: Resources
    #: Which of the host's providers, and of the pools that share with it, serve which resource group of the request;
    #: null where all comes from the compute node.
    allocation_request: AllocationRequest | None = None
    #: Where the guest comes from, when it is no new one. A live migration's arrives running, and :meth:`Driver.admit`
    #: is its pre-check; any other's was stopped on its source, or is on a host that is down. The source may be this
    #: very host: the old guest is another attempt's, and keeps what it holds until it is destroyed.
    moving: MovingGuest | None = None
    #: The claimed one of the host's nodes, as :meth:`Driver.hosts` names them: where a host has several, the guest is
    #: made on this one. Null from a cell conductor of a former release.
    node: str | None = None


@dataclass(frozen=True, slots=True)
class GuestOrder:
    """Something that is to be done to a guest: to which one, and by which order."""

    #: Kept with the guest: what was carried out under it is not carried out again, nor after a later order.
    order_id: str
    instance_uuid: str
    attempt_id: str
    claim_id: str
    #: Grows with each order: one that is new and has a smaller number than another of the same guest comes too late.
    #: Null from a cell of a former release.
    number: int | None = None


class ReshapeNeeded(Exception):
    """A driver has restructured a tree of which guests may hold something, which no report can do.

    Carried out when the agent starts, and later only with ``[compute] reshape_at_any_report``.

    :param instructions: what moves where; :func:`compute.tree_changes.moves` finds it by comparing the trees.
    :param dealt: where what these consumers hold shall go, providers named by uuid or name. It may split what one of
        them holds. The consumer of a guest is its instance, or its migration while a move waits on its source. What is
        held by consumers that are not named is dealt out so that each whole allocation fits.
    """

    def __init__(self, instructions: Sequence[MoveInstruction], dealt: Sequence[Dealt] = ()) -> None:
        super().__init__(instructions, dealt)
        self.instructions = instructions
        self.dealt = dealt


class Driver(ABC):
    """The hosts of one agent.

    The driver is what remembers, across restarts of the agent: it keeps ``attempt_id`` and ``claim_id`` with each
    guest, and knows which attempts have been destroyed, for as long as a message about them may still arrive. That
    makes spawn and destroy idempotent, and a late spawn harmless. Methods are called from many threads at once, but of
    one attempt never two destroys, nor two of spawn, :meth:`stop_guest`, :meth:`start_guest` and :meth:`rebuild_guest`;
    a destroy may come while one of those is under way. A host that is not the driver's raises
    :class:`~moorage.errors.HostNotFound` wherever one is named, and one that does not answer
    :class:`~moorage.errors.NoReply` where something is to be done on it.
    """

    def __init__(self, conf: cfg.ConfigOpts, agent: str, cell_name: str) -> None:
        self.conf = conf
        self.agent = agent
        self.cell_name = cell_name

    def start(self) -> None:  # noqa: B027 - most drivers have nothing to open
        """Open what the driver needs; called once, before anything else."""

    def close(self) -> None:  # noqa: B027 - most drivers have nothing to close
        """Let go of what was opened; guests stay. Repeating it does nothing."""

    @abstractmethod
    def hosts(self) -> Sequence[HostReport]:
        """Describe every host, alive or not. Called at each report: answer from memory."""

    @abstractmethod
    def update_provider_tree(self, host: HostReport, tree: ProviderTree) -> None:
        """Make of a tree of resource providers what ``host`` has; the root's uuid is its ``compute_node_uuid``.

        The tree comes as the store last told it, empty for a host that the store does not have. What the driver does
        not touch stays; a tree that is right already is left as it is. At most 1,000 providers. Called at each report
        and again when the store turns out to be ahead: answer from memory, and the same for the same.

        :raises ReshapeNeeded: what is allocated has to be moved between these providers first. ``tree`` is then as it
            shall be in the end: providers that are new in it are created for the move.
        """

    def reshaped(self, host: HostReport, plan: ReshapePlan) -> None:  # noqa: B027 - a driver may not want to know
        """Take note that a reshape of ``host`` was done: what was created, and where each allocation went."""

    def reshape_refused(  # noqa: B027 - a driver may not want to know
        self, host: HostReport, refusal: errors.MoorageError
    ) -> None:
        """Take note that a reshape of ``host`` was refused and nothing has changed.

        :class:`~moorage.errors.ImpossibleDeal` names a consumer whose amounts fit nowhere whole: a driver that knows
        better says where they go (``dealt``) when it is asked again, with the next report.
        """

    @abstractmethod
    def alive(self) -> Collection[str]:
        """Return the names of the hosts that can take work now."""

    def has_host(self, host: str) -> bool:
        """Tell whether ``host`` is one of the driver's."""
        return any(host == report.service_host for report in self.hosts())

    def has_node(self, host: str, node: str) -> bool:
        """Tell whether ``node`` is one of the nodes of ``host``."""
        return any((host, node) == (report.service_host, report.nodename) for report in self.hosts())

    def is_alive(self, host: str) -> bool:
        """Tell whether ``host`` is one that can take work now."""
        return host in self.alive()

    def admit(self, host: str, guest: GuestSpec) -> None:  # noqa: B027 - a driver may leave it all to spawn
        """Refuse what can be seen, without starting anything, to be hopeless here; asked before the claim is accepted.

        :raises BuildFailed: why the host does not take the guest.
        :raises BuildImpossible: as :meth:`spawn`.
        """

    @abstractmethod
    def spawn(self, host: str, guest: GuestSpec) -> None:
        """Start a guest and return once it runs; one that this attempt has started already is left as it is.

        That goes for one that was stopped since: it stays stopped.

        :raises BuildFailed: it could not be started, or this attempt has been destroyed, be it meanwhile. Pieces of it
            may be left for :meth:`destroy`.
        :raises BuildImpossible: the same, where the fault lies with what was asked for, for instance with an image that
            is broken: the build ends in error, and no other host is tried.
        """

    @abstractmethod
    def destroy(self, host: str, instance_uuid: str, attempt_id: str, claim_id: str) -> None:
        """Remove whatever an attempt has left on ``host``, nothing included, and refuse its spawn from now on.

        Upon return nothing of it is left, it holds nothing of the host, and a spawn under way brings nothing back: it
        ends, with :class:`~moorage.errors.BuildFailed`.

        :raises RequestInProgress: its spawn is under way and cannot be cut short; ask again when that has ended.
        :raises InvalidState: the attempt's guest was started under another claim; it is left alone.
        """

    @abstractmethod
    def stop_guest(self, host: str, order: GuestOrder) -> None:
        """Stop a guest, and return when it does not run any more; one that does not run is left as it is.

        It keeps all it holds, and stays stopped until it is started or rebuilt, whatever becomes of the agent.

        As for the two methods below: an order that is repeated is carried out once, and taken up again where it had
        failed or was cut short; one that comes after a later order is refused, so that a message which arrives late
        changes nothing any more. To know that, the driver keeps the ids of a guest's orders, and the greatest number
        among them, for as long as the guest.

        :raises InvalidState: this attempt has no guest here that was ever started, its guest is another claim's, or a
            later order has been begun.
        :raises GuestActionFailed: it could not be done, or the guest was destroyed meanwhile.
        """

    @abstractmethod
    def start_guest(self, host: str, order: GuestOrder) -> None:
        """Start a guest that was stopped, and return when it runs; one that runs is left as it is.

        :raises InvalidState: as :meth:`stop_guest`.
        :raises GuestActionFailed: it could not be done, or the guest was destroyed meanwhile.
        """

    @abstractmethod
    def rebuild_guest(self, host: str, order: GuestOrder, image: Image) -> None:
        """Make a guest anew in its place, from ``image``, and return when it runs, whether or not it ran before.

        It holds what it held, under the same attempt and claim. When that fails or is cut short, the guest is there
        and does not run: it is neither unfinished nor lost, but can be rebuilt again, or destroyed.

        :raises InvalidState: as :meth:`stop_guest`.
        :raises GuestActionFailed: it could not be done, or the guest was destroyed meanwhile.
        """

    @abstractmethod
    def guests(self, host: str) -> Sequence[Guest]:
        """Return the guests on a host, those stopped, half made or half removed included."""

    @abstractmethod
    def unfinished(self, host: str) -> Collection[str]:
        """Return the attempts of those guests on a host that do not run, because their spawn never came to its end."""

    @abstractmethod
    def stopped(self, host: str) -> Collection[str]:
        """Return the attempts of those guests on a host that do not run, because they were told to: none unfinished."""


def load(conf: cfg.ConfigOpts, agent: str, cell_name: str) -> Driver:
    """Return the driver that ``[compute] driver`` names, not yet started.

    :raises UnknownPlugin: no entry point of `moorage.drivers` has that name.
    :raises ConfigurationError: it is there and cannot be loaded.
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
