"""Serve the methods of topic `placement` about server groups."""

import logging

from sqlalchemy import Connection

from moorage.bus.bus import serves
from moorage.messages import (
    CreateServerGroup,
    DeleteServerGroup,
    Done,
    GetServerGroup,
    ListServerGroups,
    ServerGroupState,
)
from placement_store.endpoints import StoreEndpoint
from placement_store.server_groups import rows as groups

LOG = logging.getLogger(__name__)


class GroupEndpoint(StoreEndpoint):
    """Serve server groups."""

    @serves(CreateServerGroup)
    def create_server_group(self, message: CreateServerGroup) -> ServerGroupState:
        """Create a server group.

        :raises AlreadyExists: there is one of that uuid.
        """
        return self._once(message, lambda connection: groups.create(connection, message))

    @serves(ListServerGroups)
    def list_server_groups(self, message: ListServerGroups) -> list[ServerGroupState]:
        """Return the server groups with their members, by name and uuid."""
        return self._database.read(lambda connection: groups.listed(connection, message))

    @serves(GetServerGroup)
    def get_server_group(self, message: GetServerGroup) -> ServerGroupState:
        """Return one server group with its members.

        :raises ServerGroupNotFound: there is none of that uuid.
        """
        return self._database.read(lambda connection: groups.get(connection, message.uuid))

    @serves(DeleteServerGroup)
    def delete_server_group(self, message: DeleteServerGroup) -> Done:
        """Delete a server group that has no members.

        :raises ServerGroupNotFound: there is none of that uuid.
        :raises InvalidState: it has members.
        """

        def work(connection: Connection) -> Done:
            groups.delete(connection, message.uuid)
            return Done()

        done = self._once(message, work)
        LOG.info("Server group %s is deleted", message.uuid)
        return done
