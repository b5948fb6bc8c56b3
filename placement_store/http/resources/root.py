"""``/``: the version document, without authentication."""

import time

from placement_store.http.operations import Call, OperationResult, Resource, operation
from placement_store.http.versions import MAX, MIN


class RootResource(Resource):
    """The version document."""

    path = "/"

    @operation(None)
    def on_get(self, _call: Call) -> OperationResult:
        """Show the range of microversions."""
        version = {
            "id": f"v{MIN}",
            "max_version": str(MAX),
            "min_version": str(MIN),
            "status": "CURRENT",
            "links": [{"rel": "self", "href": ""}],
        }
        return OperationResult(body={"versions": [version]}, modified=time.time())
