"""What all paths below a provider have in common."""

from placement_store.http.operations import Resource
from placement_store.providers import outlines


class ProviderScopedResource(Resource):
    """A noun whose path names a provider by its ``uuid``."""

    def look_up(self, **path: str) -> None:
        """Make sure that the provider is there.

        :raises ProviderNotFound: it is not.
        """
        self.store.read(lambda connection: outlines.get(connection, path["uuid"]))
