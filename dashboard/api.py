"""The JSON API of the page: one resource a path, all below ``/api``."""

import gzip
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar

import falcon
import msgspec

from dashboard.access import AUDIT, READ
from dashboard.pages import accepts_gzip
from dashboard.sources import Sources
from moorage.messages.scheduler import MOST_EXPLAINED_HOSTS
from moorage.messages.wire import decode_strictly
from moorage.model import Flavor
from placement_store.http.refusals import HTTPRefusal

#: Bytes of an answer from which it is compressed: compression hardly shortens a smaller one.
_COMPRESSED_FROM = 2_000
_SIZE = ("vcpus", "memory_mb", "root_gb")


class DashboardResource:
    """A path of the API.

    :param sources: the sources of the answers.
    """

    #: A falcon URI template.
    path: ClassVar[str]
    #: The policy rule of each method; any other method is refused.
    rules: ClassVar[Mapping[str, str]] = {"GET": READ}

    def __init__(self, sources: Sources) -> None:
        self.sources = sources


class HostsResource(DashboardResource):
    """All hosts, or those that have changed."""

    path = "/api/hosts"

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Return the hosts; with ``since``, the version of an earlier answer, only the hosts changed since then."""
        _parameters(request, "since")
        _answer(request, response, self.sources.hosts(request.get_param("since")))


class HostResource(DashboardResource):
    """One host."""

    path = "/api/host"

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Return the host ``name`` with its providers and guests; ``node`` and ``cell`` (a uuid) make it unique."""
        _parameters(request, "name", "node", "cell")
        name = _required(request, "name")
        _answer(request, response, self.sources.host(name, request.get_param("node"), request.get_param("cell")))


class InstancesResource(DashboardResource):
    """The newest instances."""

    path = "/api/instances"

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Return the newest instances, the newest first."""
        _parameters(request)
        _answer(request, response, {"instances": self.sources.requests()})


class InstanceResource(DashboardResource):
    """One instance."""

    path = "/api/instances/{uuid}"

    def on_get(self, request: falcon.Request, response: falcon.Response, uuid: str) -> None:
        """Return the history of an instance."""
        _parameters(request)
        _answer(request, response, self.sources.instance(uuid))


class OperationsResource(DashboardResource):
    """The operations under way."""

    path = "/api/operations"

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Return the operations under way, the oldest first."""
        _parameters(request)
        _answer(request, response, self.sources.operations())


class ExplainResource(DashboardResource):
    """Why a request was refused, or where it would go."""

    path = "/api/explain"

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Explain the request of an ``instance``, or of a size; ``host`` names hosts to explain too.

        The recorded explanation of a refused instance is returned, unless ``now`` is true or a host is named.
        """
        _parameters(request, "instance", "host", "now", *_SIZE)
        hosts = tuple(request.get_param_as_list("host") or ())
        if len(hosts) > MOST_EXPLAINED_HOSTS:
            raise HTTPRefusal(400, f"At most {MOST_EXPLAINED_HOSTS} hosts can be explained at once.")
        uuid = request.get_param("instance")
        size = {name: request.get_param_as_int(name) for name in _SIZE if request.has_param(name)}
        if (uuid is None) == (not size):
            raise HTTPRefusal(400, "Either an instance or a size must be given: vcpus and memory_mb, maybe root_gb.")
        if uuid is None:
            found = self.sources.explain_size(decode_strictly(Flavor, size), hosts)
        else:
            found = self.sources.explain_instance(uuid, hosts, now=request.get_param_as_bool("now", default=False))
        _answer(request, response, found)


class AuditResource(DashboardResource):
    """The last audit."""

    path = "/api/audit"
    rules: ClassVar[Mapping[str, str]] = {"GET": READ, "POST": AUDIT}

    def on_get(self, request: falcon.Request, response: falcon.Response) -> None:
        """Return the state and the findings of the last audit."""
        _parameters(request)
        _answer(request, response, self.sources.audits.state())

    def on_post(self, request: falcon.Request, response: falcon.Response) -> None:
        """Start an audit, unless one is running or has just ended; it changes nothing in the cloud."""
        _parameters(request)
        response.status = HTTPStatus.ACCEPTED
        _answer(request, response, self.sources.audits.begin())


RESOURCES: tuple[type[DashboardResource], ...] = (
    HostsResource,
    HostResource,
    InstancesResource,
    InstanceResource,
    OperationsResource,
    ExplainResource,
    AuditResource,
)


def _parameters(request: falcon.Request, *known: str) -> None:
    """Check that a request has no other parameters.

    :raises HTTPRefusal: 400, the request has another parameter.
    """
    if unknown := sorted(request.params.keys() - set(known)):
        raise HTTPRefusal(400, f"There is no parameter {unknown[0]!r} here.")


def _required(request: falcon.Request, name: str) -> str:
    value = request.get_param(name)
    if not value:
        raise HTTPRefusal(400, f"The parameter {name!r} must be given.")
    return value


def _answer(request: falcon.Request, response: falcon.Response, content: Any) -> None:
    """Write an answer as JSON, compressed if the client accepts that."""
    data = msgspec.json.encode(content)
    response.content_type = falcon.MEDIA_JSON
    if len(data) >= _COMPRESSED_FROM and accepts_gzip(request):
        data = gzip.compress(data, compresslevel=4)
        response.set_header("Content-Encoding", "gzip")
    response.append_header("Vary", "Accept-Encoding")
    response.data = data
