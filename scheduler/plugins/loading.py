"""Load filters, weighers and request filters by name from their entry points, in the configured order."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from oslo_config import cfg
from stevedore.named import NamedExtensionManager

from moorage import errors
from moorage.config import unknown
from moorage.config.options import checked
from moorage.plugin import BadValue, Filter, RequestFilter, Weigher
from moorage.plugin.attributes import GREATEST, number
from scheduler.plugins.watch import PluginWatchdog

LOG = logging.getLogger(__name__)

P = TypeVar("P", bound=Filter | Weigher | RequestFilter)
T = TypeVar("T")

#: The packages of the built-in plug-ins: these are not timed, and the requests that they narrow are not validated.
OURS = frozenset({"filters", "weighers"})


class _PluginKind(NamedTuple):
    """A kind of plug-ins: its word in errors, the group of its options, and the base of its classes."""

    word: str
    group: str
    base: type


_FILTER = _PluginKind("filter", "filters", Filter)
_WEIGHER = _PluginKind("weigher", "weighers", Weigher)
_REQUEST_FILTER = _PluginKind("request filter", "request_filters", RequestFilter)


class Named(NamedTuple, Generic[P]):
    """A plug-in under the name of its entry point."""

    name: str
    plugin: P


class Weighted(NamedTuple):
    """A weigher with the multiplier of its normalised weights."""

    name: str
    plugin: Weigher
    multiplier: float


def load_filters(conf: cfg.ConfigOpts, names: Sequence[str]) -> list[Named[Filter]]:
    """Return the filters of these names, in this order.

    :raises UnknownPlugin: no plug-in has one of these names.
    :raises ConfigurationError: a plug-in cannot be loaded, or not within `[scheduler] plugin_timeout`, has options that
        clash with another's, or refuses the values of its options.
    """
    return [Named(name, plugin) for name, plugin, _ in _loaded(conf, _FILTER, names)]


def load_weighers(conf: cfg.ConfigOpts, names: Sequence[str]) -> list[Weighted]:
    """Return the weighers of these names with their multipliers; see :func:`load_filters` for the errors."""
    loaded = []
    for name, plugin, settings in _loaded(conf, _WEIGHER, names):
        option = _multiplier_option(name, type(plugin))
        try:
            multiplier = number(f"[weighers] {option.name}", settings[option.dest], 0.0)
        except BadValue as fault:
            raise errors.ConfigurationError(reason=str(fault)) from fault
        loaded.append(Weighted(name, plugin, multiplier))
    return loaded


def load_request_filters(conf: cfg.ConfigOpts, names: Sequence[str]) -> list[Named[RequestFilter]]:
    """Return the request filters of these names, in this order; see :func:`load_filters` for the errors."""
    return [Named(name, plugin) for name, plugin, _ in _loaded(conf, _REQUEST_FILTER, names)]


def multiplier_key(name: str) -> str:
    """Return the name of the multiplier of a weigher, as an option and as metadata of aggregates."""
    return f"{name}_weight_multiplier"


def numeric_metadata(seconds: float = 0.0) -> frozenset[str]:
    """Return the metadata keys of aggregates that installed filters and weighers read as numbers.

    All installed plug-ins count, not only the enabled ones: one that is enabled later must be able to read the values.
    A plug-in that cannot be loaded is left out.

    :param seconds: time limit for each import; 0 for none.
    """
    keys = {multiplier_key(name) for name in _entry_points(_WEIGHER)}
    for kind in (_FILTER, _WEIGHER):
        for name in _entry_points(kind):
            try:
                [plugin_class] = _classes(kind, [name], seconds).values()
            except errors.ConfigurationError as fault:
                LOG.warning("The names of numeric metadata cannot be read: %s", fault)
            else:
                keys.update(plugin_class.numeric_metadata)
    return frozenset(keys)


def list_opts(seconds: float = 0.0) -> list[tuple[str, list[cfg.Opt]]]:
    """Return the options of all installed plug-ins by group, in the form that oslo-config-generator expects.

    :param seconds: time limit for each import; 0 for none.
    """
    listed = []
    for kind in (_FILTER, _WEIGHER, _REQUEST_FILTER):
        classes = _classes(kind, _entry_points(kind), seconds)
        listed.append((kind.group, [option for name in classes for option in _options(kind, name, classes[name])]))
    return listed


def check_names(conf: cfg.ConfigOpts) -> None:
    """Check that the options in the plug-ins' groups of the configuration files belong to an installed plug-in.

    :raises ConfigurationError: an option does not; the error names the file and the option that was probably meant.
    """
    files = [Path(file) for file in conf.config_file or ()]
    known: dict[str, set[str]] = {group: set() for group in unknown.PLUGIN_GROUPS}
    try:
        for group, options in list_opts(conf.scheduler.plugin_timeout):
            for option in options:
                for section, name in ((group, option.name), *unknown.names_of(group, option)):
                    known.setdefault(section, set()).add(name)
    except errors.ConfigurationError as fault:
        # A broken package whose plug-ins are not enabled must not prevent the start.
        LOG.warning("The names of the plug-ins' options are not checked: %s", fault)
        return
    unknown.of_groups(files, {group: known[group] for group in unknown.PLUGIN_GROUPS})


def _loaded(
    conf: cfg.ConfigOpts, kind: _PluginKind, names: Sequence[str]
) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    seconds = conf.scheduler.plugin_timeout
    for name, plugin_class in _classes(kind, names, seconds).items():
        settings = _settings(conf, kind.group, name, _options(kind, name, plugin_class))
        yield name, _construct(f"{kind.word} {name}", plugin_class, settings, seconds), settings


def _options(kind: _PluginKind, name: str, plugin_class: Any) -> list[cfg.Opt]:
    multiplier = [_multiplier_option(name, plugin_class)] if kind is _WEIGHER else []
    return [*multiplier, *plugin_class.options]


def _multiplier_option(name: str, plugin_class: type[Weigher]) -> cfg.FloatOpt:
    return cfg.FloatOpt(
        multiplier_key(name),
        default=plugin_class.default_multiplier,
        help=f"The multiplier of the weights of the {name} weigher. A negative value reverses the order, 0 disables "
        "the weigher. Metadata of the same name overrides it for the hosts of an aggregate.",
    )


def _entry_points(kind: _PluginKind) -> dict[str, set[str]]:
    """Return the entry points of a kind by name; a set, as a package may be found twice on the path."""
    manager = NamedExtensionManager[Any](f"moorage.{kind.group}", names=[])
    known: dict[str, set[str]] = {}
    for entry_point in manager.list_entry_points():
        known.setdefault(entry_point.name, set()).add(entry_point.value)
    return dict(sorted(known.items()))


def _classes(kind: _PluginKind, names: Collection[str], seconds: float) -> dict[str, Any]:
    """Import the plug-in classes of these names, in their order."""
    known = _entry_points(kind)
    # Check before any import: the error for a wrong name must not wait for one.
    for name in names:
        if name not in known:
            raise errors.UnknownPlugin(kind=kind.word, name=name, known=", ".join(known) or "none")
        if len(known[name]) > 1:
            raise errors.ConfigurationError(reason=f"two packages provide a {kind.word} {name}: {sorted(known[name])}")
    if len(set(names)) < len(names):
        raise errors.ConfigurationError(reason=f"a {kind.word} is enabled twice: {', '.join(names)}")

    classes = {}
    for name in names:
        [source] = known[name]
        plugin = f"{kind.word} {name}"
        found = classes[name] = _within(seconds, plugin, source, partial(_import, kind, name))
        if not (isinstance(found, type) and issubclass(found, kind.base)):
            raise errors.ConfigurationError(reason=f"the {plugin} is no {kind.base.__name__}, but {found!r}")
        _check_attributes(plugin, found)
    return classes


def _check_attributes(plugin: str, found: Any) -> None:
    """Refuse a plug-in class whose attributes do not have the types that the interface gives them.

    :raises ConfigurationError: naming the attribute.
    """
    for attribute, part in (("options", cfg.Opt), ("numeric_metadata", str)):
        value = getattr(found, attribute, ())
        # A missing comma makes a tuple of one key a text, and each of its letters a key.
        if isinstance(value, str):
            raise errors.ConfigurationError(reason=f"the {plugin} has a text instead of a list as {attribute}")
        if not (isinstance(value, Collection) and all(isinstance(each, part) for each in value)):
            reason = f"the {plugin} has {value!r:.60} as {attribute}, which is no list of {part.__name__}"
            raise errors.ConfigurationError(reason=reason)
    multiplier = getattr(found, "default_multiplier", 0.0)
    if not isinstance(multiplier, int | float):
        reason = f"the {plugin} has {multiplier!r:.60} as default_multiplier, which is no number"
        raise errors.ConfigurationError(reason=reason)


def _import(kind: _PluginKind, name: str) -> Any:
    plugin = f"{kind.word} {name}"

    def refuse(_manager: Any, entry_point: Any, fault: BaseException) -> None:
        reason = f"the {plugin} ({entry_point.value}) cannot be loaded: {fault}"
        raise errors.ConfigurationError(reason=reason) from fault

    try:
        manager = NamedExtensionManager[Any](f"moorage.{kind.group}", [name], on_load_failure_callback=refuse)
    except (AssertionError, SystemExit) as fault:
        # The library does not catch these, and a module may raise anything at import.
        reason = f"the {plugin} cannot be loaded: {type(fault).__name__}: {fault}"
        raise errors.ConfigurationError(reason=reason) from fault
    return manager[name].plugin


def _construct(plugin: str, plugin_class: Any, settings: Mapping[str, Any], seconds: float) -> Any:
    """Construct a plug-in with its settings; any exception of its constructor becomes an error that names it."""
    try:
        return _within(seconds, plugin, plugin_class.__module__, lambda: plugin_class(settings))
    except errors.ConfigurationError:
        raise
    except (Exception, SystemExit) as fault:
        reason = (isinstance(fault, ValueError) and str(fault)) or f"{type(fault).__name__}: {fault}"
        raise errors.ConfigurationError(reason=f"the {plugin}: {reason}") from fault


def _within(seconds: float, plugin: str, source: str, work: Callable[[], T]) -> T:
    """Run the import or the constructor of a plug-in within a time limit, and return its result.

    :param seconds: time limit for a plug-in that is not built-in; 0 for none.
    :param source: the module of the plug-in, which begins with the name of its package.
    :raises ConfigurationError: it has not returned in time.
    """
    if source.split(".")[0] in OURS:
        return work()
    # Not the watchdog of decisions: this plug-in is not in force yet, so no failure is counted.
    watch = PluginWatchdog(seconds)

    def timed_work() -> T:
        with watch.timed(plugin):
            return work()

    try:
        return watch.run(timed_work)
    except errors.SlowPlugin as slow:
        raise errors.ConfigurationError(
            reason=f"the {plugin} ({source}) cannot be loaded: its import or its constructor has not ended within "
            f"{seconds} s ([scheduler] plugin_timeout); the log names the line"
        ) from slow
    finally:
        watch.stop()


def _settings(conf: cfg.ConfigOpts, group: str, name: str, options: Sequence[cfg.Opt]) -> dict[str, Any]:
    try:
        conf.register_opts(options, group=group)
    except cfg.Error as fault:
        raise errors.ConfigurationError(reason=f"the options of {name} in [{group}]: {fault}") from fault
    return {option.dest: checked(conf, group, option, GREATEST) for option in options}
