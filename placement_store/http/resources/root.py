"""``/``: which versions there are; open to everybody."""

import time

from placement_store.http.operations import Answer, Call, Noun, operation
from placement_store.http.versions import MAX, MIN


class Root(Noun):
    """The version document."""

    path = "/"

    @operation(None)
    def on_get(self, _call: Call) -> Answer:
        """Return the range of microversions."""
        version = {
            "id": f"v{MIN}",
            "max_version": str(MAX),
            "min_version": str(MIN),
            "status": "CURRENT",
            "links": [{"rel": "self", "href": ""}],
        }
        return Answer(body={"versions": [version]}, modified=time.time())
