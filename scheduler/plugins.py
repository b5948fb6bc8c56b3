"""Filters and weighers, loaded by name from their entry points, in the order in which they are configured."""

from collections.abc import Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from oslo_config import cfg
from stevedore.named import NamedExtensionManager

from moorage import errors
from moorage.plugin import Filter, Weigher

P = TypeVar("P", bound=Filter | Weigher)

FILTERS = "moorage.filters"
WEIGHERS = "moorage.weighers"


class Named(NamedTuple, Generic[P]):
    """A plug-in under the name of its entry point."""

    name: str
    plugin: P


class Weighted(NamedTuple):
    """A weigher, and what its normalised weights are multiplied by."""

    name: str
    plugin: Weigher
    multiplier: float


def load_filters(conf: cfg.ConfigOpts, names: Sequence[str]) -> list[Named[Filter]]:
    """Return the filters of these names, in this order.

    :raises UnknownPlugin: there is none of one of these names.
    :raises ConfigurationError: one of them cannot be loaded, or has options that clash with another's.
    """
    classes: dict[str, type[Filter]] = _classes("filter", FILTERS, names, Filter)
    return [Named(name, kind(_settings(conf, "filters", name, kind.options))) for name, kind in classes.items()]


def load_weighers(conf: cfg.ConfigOpts, names: Sequence[str]) -> list[Weighted]:
    """Return the weighers of these names, in this order, each with its configured multiplier.

    :raises UnknownPlugin: there is none of one of these names.
    :raises ConfigurationError: one of them cannot be loaded, or has options that clash with another's.
    """
    loaded = []
    classes: dict[str, type[Weigher]] = _classes("weigher", WEIGHERS, names, Weigher)
    for name, kind in classes.items():
        multiplier = _multiplier_option(name, kind)
        settings = _settings(conf, "weighers", name, [*kind.options, multiplier])
        loaded.append(Weighted(name, kind(settings), settings[multiplier.dest]))
    return loaded


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options of all filters and weighers of this installation, as oslo-config-generator asks for them."""
    filters: dict[str, type[Filter]] = _classes("filter", FILTERS, _known(FILTERS), Filter)
    weighers: dict[str, type[Weigher]] = _classes("weigher", WEIGHERS, _known(WEIGHERS), Weigher)
    of_filters = [option for kind in filters.values() for option in kind.options]
    of_weighers = [
        option for name, kind in weighers.items() for option in (_multiplier_option(name, kind), *kind.options)
    ]
    return [("filters", of_filters), ("weighers", of_weighers)]


def _multiplier_option(name: str, kind: type[Weigher]) -> cfg.FloatOpt:
    return cfg.FloatOpt(
        f"{name}_weight_multiplier",
        default=kind.default_multiplier,
        help=f"What the weights of the {name} weigher are multiplied by; negative turns it round, 0 leaves it out.",
    )


def _known(namespace: str) -> dict[str, set[str]]:
    """Return the classes that installed packages bring, by name; the same package may be found twice on the path."""
    manager = NamedExtensionManager[Any](namespace, names=[])
    known: dict[str, set[str]] = {}
    for entry_point in manager.list_entry_points():
        known.setdefault(entry_point.name, set()).add(entry_point.value)
    return dict(sorted(known.items()))


def _classes(what: str, namespace: str, names: Collection[str], base: type) -> dict[str, Any]:
    known = _known(namespace)
    for name in names:
        if name not in known:
            raise errors.UnknownPlugin(kind=what, name=name, known=", ".join(known) or "none")
        if len(known[name]) > 1:
            raise errors.ConfigurationError(reason=f"two packages bring a {what} {name}: {sorted(known[name])}")
    if len(set(names)) < len(names):
        raise errors.ConfigurationError(reason=f"a {what} is enabled twice: {', '.join(names)}")

    def refuse(_manager: Any, entry_point: Any, fault: BaseException) -> None:
        raise errors.ConfigurationError(
            reason=f"the {what} {entry_point.name} ({entry_point.value}) cannot be loaded: {fault}"
        ) from fault

    manager = NamedExtensionManager[Any](namespace, list(names), name_order=True, on_load_failure_callback=refuse)
    classes = {extension.name: extension.plugin for extension in manager}
    for name, kind in classes.items():
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise errors.ConfigurationError(reason=f"the {what} {name} is no {base.__name__}, but {kind!r}")
    return classes


def _settings(conf: cfg.ConfigOpts, group: str, name: str, options: Sequence[cfg.Opt]) -> dict[str, Any]:
    """Register a plug-in's options and return their values by name."""
    try:
        conf.register_opts(options, group=group)
        return {option.dest: conf[group][option.dest] for option in options}
    except (cfg.Error, ValueError) as fault:
        raise errors.ConfigurationError(reason=f"the options of {name} in [{group}]: {fault}") from fault
