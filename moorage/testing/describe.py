"""Descriptions of the host and the request on which a plug-in failed a check: only the fields not at their defaults."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import msgspec

from moorage.model import RequestSpec
from moorage.plugin import Host
from moorage.testing.builders import host as usual_host
from moorage.testing.builders import request as usual_request

#: Fields that differ between all hosts.
_NAMES = frozenset({"service_host", "nodename", "compute_node_uuid", "cell_uuid", "providers", "inventories"})


def of_host(host: Host) -> str:
    """Return a host as text: its inventories, and the fields that differ from :func:`moorage.testing.host`."""
    usual = usual_host()
    differences = [
        f"{name} {inventory.used} of {inventory.capacity:g} used"
        for name, inventories in host.inventories.items()
        for inventory in inventories
    ]
    named = (each.name for each in fields(Host) if each.name not in _NAMES)
    differences += [f"{name}={getattr(host, name)!r}" for name in named if getattr(host, name) != getattr(usual, name)]
    return f"{host.service_host} ({', '.join(differences)})"


def of_request(request: RequestSpec) -> str:
    """Return a request as text: the fields that differ from :func:`moorage.testing.request`."""
    return f"a request with {', '.join(_unusual(request, usual_request())) or 'nothing unusual'}"


def require(holds: bool, sentence: str) -> None:
    """Check that a plug-in has a property.

    :raises AssertionError: it lacks it, with a sentence about it.
    """
    if not holds:
        raise AssertionError(sentence)


@contextmanager
def faultless(name: str, request: RequestSpec) -> Iterator[None]:
    """Check that the plug-in ``name`` raises no exception that a scheduler would count as its fault.

    :raises AssertionError: it raises one, which is the cause of this error.
    """
    try:
        yield
    except AssertionError:
        raise
    except (Exception, SystemExit) as fault:  # an author's class may raise anything
        raise AssertionError(
            f"{name} raises {type(fault).__name__}: {fault}; asked by {of_request(request)}"
        ) from fault


def _unusual(value: msgspec.Struct, usual: msgspec.Struct) -> Iterator[str]:
    for name in value.__struct_fields__:
        here, there = getattr(value, name), getattr(usual, name)
        if here == there:
            continue
        if isinstance(here, msgspec.Struct) and isinstance(there, type(here)):
            yield from (f"{name}.{field}" for field in _unusual(here, there))
        else:
            plain = msgspec.to_builtins(here) if isinstance(here, msgspec.Struct) else here
            yield f"{name}={plain!r}"
