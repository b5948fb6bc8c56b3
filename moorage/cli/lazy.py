"""Modules that are loaded at their first use; import this module before any module that imports them.

oslo.config imports two libraries for two types of options, network addresses and URIs. Commands that call services have
no such options, and the imports would take a sixth of their time.
"""

import importlib.util
import sys

_LATER = ("netaddr", "rfc3986")


def _load_later(name: str) -> None:
    """Register a module whose code runs at the first access to one of its attributes; see importlib's documentation."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)


for _name in _LATER:
    _load_later(_name)
