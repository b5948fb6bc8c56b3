"""The endpoint of the registered hosts: they are listed, changed and deleted."""

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.db.database import Database
from moorage.messages import DeleteHost, Done, ListHosts, SetHost
from moorage.model import HostState
from moorage.service.stored_requests import StoredRequests
from placement_store import cells
from placement_store.db.names import ResourceClassNames
from placement_store.db.retries import run_once
from scheduler.registry import deletion, hosts


class HostEndpoint:
    """Serve the methods of topic ``scheduler`` that concern registered hosts."""

    def __init__(self, database: Database, requests: StoredRequests, names: ResourceClassNames) -> None:
        self._database = database
        self._requests = requests
        self._names = names

    @serves(ListHosts)
    def list_hosts(self, message: ListHosts) -> list[HostState]:
        """Answer :class:`~moorage.messages.ListHosts`.

        :raises CellNotFound: the cell does not exist.
        """

        def work(connection: Connection) -> list[HostState]:
            if message.cell_uuid is not None:
                cells.by_uuid(connection, message.cell_uuid)
            return hosts.states(connection, message)

        return self._database.read(work)

    @serves(SetHost)
    def set_host(self, message: SetHost) -> HostState:
        """Answer :class:`~moorage.messages.SetHost`; see :func:`scheduler.registry.hosts.set_host` for its errors."""
        return run_once(self._requests, message, lambda connection: hosts.set_host(connection, message))

    @serves(DeleteHost)
    def delete_host(self, message: DeleteHost) -> Done:
        """Answer :class:`~moorage.messages.DeleteHost`; see :func:`scheduler.registry.deletion.plan` for its errors.

        :raises ClaimContention: concurrent transactions kept changing the host or its providers.
        """
        if message.dry_run:
            self._database.read(lambda connection: deletion.plan(connection, message))
            return Done()

        def work(connection: Connection) -> Done:
            deletion.delete(connection, message, self._names)
            return Done()

        return run_once(self._requests, message, work)
