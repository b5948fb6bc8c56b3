"""A collector of traces."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """A trace collector that keeps the spans of each trace, each with its service and its parent."""

    def __init__(self) -> None:
        self.spans: dict[bytes, list[tuple[str, str, bytes, bytes]]] = {}
        kept = self.spans

        class Receiver(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for of_process in ExportTraceServiceRequest.FromString(body).resource_spans:
                    values = {each.key: each.value.string_value for each in of_process.resource.attributes}
                    for scope in of_process.scope_spans:
                        for span in scope.spans:
                            row = (values["service.name"], span.name, span.span_id, span.parent_span_id)
                            kept.setdefault(span.trace_id, []).append(row)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
