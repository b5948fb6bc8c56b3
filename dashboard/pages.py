"""The files of the page, read once from the package: markup, styles, scripts, and the chart library."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

import falcon

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "LICENSE": "text/plain; charset=utf-8",
}
_INDEX = "index.html"
_NO_QUALITY = re.compile(r"q=0(\.0*)?")


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes
    media_type: str
    tag: str


def application(headers: Mapping[str, str]) -> "WSGIApplication":
    """Return the application that serves the files.

    :param headers: the headers of every answer.
    """
    app = falcon.App(middleware=[_Headers(headers)])
    files = _Files()
    app.add_route("/", files)
    app.add_sink(files.on_get, prefix="/")
    return app


def accepts_gzip(request: falcon.Request) -> bool:
    """Return whether a client accepts a compressed answer: it names gzip, and not with a quality of 0."""
    codings = (request.get_header("Accept-Encoding") or "").replace(" ", "").lower().split(",")
    parted = (coding.partition(";") for coding in codings)
    return any(name == "gzip" and not _NO_QUALITY.fullmatch(quality) for name, _, quality in parted)


class _Headers:
    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    def process_request(self, request: falcon.Request, _response: falcon.Response) -> None:
        if request.method not in ("GET", "HEAD"):
            raise falcon.HTTPMethodNotAllowed(["GET", "HEAD"])

    def process_response(
        self, _request: falcon.Request, response: falcon.Response, _resource: object, _succeeded: bool
    ) -> None:
        response.set_headers(self._headers)


class _Files:
    def __init__(self) -> None:
        root = resources.files("dashboard").joinpath("static")
        self._files = dict(_read(root, ""))

    def on_get(self, req: falcon.Request, resp: falcon.Response, **_path: Any) -> None:
        """Answer with a file; falcon omits the body of the answer to HEAD."""
        file = self._files.get(req.path.lstrip("/") or _INDEX)
        if file is None:
            raise falcon.HTTPNotFound
        resp.etag = file.tag
        # Browsers ask each time whether their copy is still valid, so that viewers get a new release at once.
        resp.cache_control = ["no-cache"]
        resp.append_header("Vary", "Accept-Encoding")
        if file.tag in [str(tag) for tag in req.if_none_match or ()]:
            resp.status = falcon.HTTP_304
            return
        resp.content_type = file.media_type
        if accepts_gzip(req):
            resp.set_header("Content-Encoding", "gzip")
            resp.data = file.compressed
        else:
            resp.data = file.content

    on_head = on_get


def _read(folder: Traversable, prefix: str) -> Iterator[tuple[str, _File]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{prefix}{entry.name}/")
        elif media_type := _TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            tag = hashlib.sha256(content).hexdigest()[:20]
            yield prefix + entry.name, _File(content, gzip.compress(content), media_type, tag)
