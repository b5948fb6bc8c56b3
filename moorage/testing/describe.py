"""What a check says of the host and the request on which a plug-in has gone wrong: only what is unusual about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import msgspec

from moorage.model import RequestSpec
from moorage.plugin import Host
from moorage.testing.builders import host as usual_host
from moorage.testing.builders import request as usual_request

#: Every host has these, and others than the next.
_NAMES = frozenset({"service_host", "nodename", "compute_node_uuid", "cell_uuid", "providers", "inventories"})


def of_host(host: Host) -> str:
    """Return a host in words: what it has, and what is otherwise than it is of :func:`moorage.testing.host`."""
    usual = usual_host()
    said = [
        f"{name} {inventory.used} of {inventory.capacity:g} used"
        for name, inventories in host.inventories.items()
        for inventory in inventories
    ]
    named = (each.name for each in fields(Host) if each.name not in _NAMES)
    said += [f"{name}={getattr(host, name)!r}" for name in named if getattr(host, name) != getattr(usual, name)]
    return f"{host.service_host} ({', '.join(said)})"


def of_request(request: RequestSpec) -> str:
    """Return a request in words: what is otherwise than it is of :func:`moorage.testing.request`."""
    return f"a request with {', '.join(_unusual(request, usual_request())) or 'nothing unusual'}"


@contextmanager
def faultless(name: str, request: RequestSpec) -> Iterator[None]:
    """Check that whoever goes by ``name`` raises nothing that a scheduler would take for a fault of the plug-in.

    :raises AssertionError: it does; what it has raised is the cause.
    """
    try:
        yield
    except AssertionError:
        raise
    except Exception as fault:  # whatever an author's class can do
        raise AssertionError(
            f"{name} raises {type(fault).__name__}: {fault}; asked by {of_request(request)}"
        ) from fault


def _unusual(value: msgspec.Struct, usual: msgspec.Struct) -> Iterator[str]:
    for name in value.__struct_fields__:
        here, there = getattr(value, name), getattr(usual, name)
        if here == there:
            continue
        if isinstance(here, msgspec.Struct) and isinstance(there, type(here)):
            yield from (f"{name}.{said}" for said in _unusual(here, there))
        else:
            yield f"{name}={_plain(here)!r}"


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
