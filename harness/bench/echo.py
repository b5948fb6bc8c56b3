"""Benchmark of bare RPC: the library's own server and clients exchange payloads as large as those of a decision."""

import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from oslo_config import cfg

from harness.bench.load import Load, Measured, Operation, measure
from harness.bench.usage import cpu_seconds
from moorage.config import messaging  # first, because it chooses the threading backend

import oslo_messaging

_TOPIC = "bench-echo"
_METHOD = "echo"
_TIMEOUT = 60


class _Echo:
    """The RPC endpoint; it answers each call with the same document."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    def echo(self, _ctxt: dict[str, Any], **_payload: object) -> Any:
        """Return the reply."""
        return self._reply


def _transport(url: str) -> oslo_messaging.Transport:
    """Return a transport whose number of prefetched messages is the library's default, and not ours."""
    conf = cfg.ConfigOpts()
    messaging.register_options(conf)
    conf([])
    conf.set_override("rabbit_qos_prefetch_count", 0, "oslo_messaging_rabbit")
    return oslo_messaging.get_rpc_transport(conf, url=url)


def _silence_warnings() -> None:
    """Silence what the library would write to the standard error output of the benchmark.

    It takes more than ten calls at once for a leak, and warns about more than thirty connections, and about each
    message that arrives while a channel is closed, which happens at the end of every run.
    """
    # The name of the last one differs from that of its module.
    for name in ("amqp", "oslo_messaging._drivers.amqpdriver", "oslo.messaging._drivers.pool"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _serve(url: str, reply: Any, pipe: Connection) -> None:
    """Serve until the other end of the pipe is closed."""
    _silence_warnings()
    transport = _transport(url)
    target = oslo_messaging.Target(topic=_TOPIC, server="echo")
    policy = oslo_messaging.DefaultRPCAccessPolicy
    server = oslo_messaging.get_rpc_server(transport, target, [_Echo(reply)], access_policy=policy)
    server.start()
    pipe.send("ready")
    try:
        pipe.recv()
    except EOFError:
        server.stop()
        server.wait()
        transport.cleanup()


@contextmanager
def _clients(url: str, payload: dict[str, Any]) -> Iterator[Callable[[int], Operation]]:
    _silence_warnings()
    transport = _transport(url)
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic=_TOPIC), timeout=_TIMEOUT)

    def ask() -> tuple[str, ...]:
        client.call({}, _METHOD, **payload)
        return ()

    try:
        yield lambda _number: ask
    finally:
        transport.cleanup()


def echo(url: str, payload: dict[str, Any], reply: Any, load: Load, pids: Mapping[str, int] | None = None) -> Measured:
    """Measure calls over the broker at ``url``; another process answers, whose time counts as that of ``pids`` does."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(url, reply, theirs), daemon=True)
    server.start()
    theirs.close()
    try:
        ours.recv()
        measured = {**(pids or {}), "server": int(server.pid or 0)}
        return measure(load, _clients, url, payload, cpu=lambda: cpu_seconds(measured))
    finally:
        ours.close()
        server.join(_TIMEOUT)
