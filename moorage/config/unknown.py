"""Detection of unknown options and sections of a configuration before a service starts, with a suggestion.

Sections of libraries, compute drivers and other programs in the same file are ignored. Only the scheduler loads the
plug-ins, so only the scheduler checks their groups (:func:`of_groups`). In a file an unknown option is an error; in the
environment it is a warning, because other services of the machine may read variables of the same form.
"""

import difflib
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from oslo_config import cfg

from moorage import errors

LOG = logging.getLogger(__name__)

#: A variable that oslo.config reads as an option.
_VARIABLE = re.compile(r"OS_([A-Z0-9_]+?)__([A-Z0-9_]+)")
#: Groups with options of plug-ins, and groups of libraries that only the Placement API loads.
PLUGIN_GROUPS = ("filters", "weighers", "request_filters")
_OF_LIBRARIES = ("cors", "oslo_middleware", "oslo_policy", "keystone_authtoken")
#: The sections of the bus library: a command that calls services reads only a few of their options, or none.
OF_THE_BUS = (
    *("DEFAULT", "oslo_messaging_rabbit", "oslo_messaging_kafka", "oslo_messaging_notifications"),
    *("oslo_messaging_metrics", "oslo_messaging_tracing"),
)
#: The least similarity at which the name of an option, or of a section, counts as misspelt. Chosen by experiment: other
#: programs have sections such as [service_user], [api_database] and [policy].
_ALIKE, _SECTIONS_ALIKE = 0.7, 0.85
_DRIVER = "_driver"

Names = Mapping[str, Collection[str]]


def check(conf: cfg.ConfigOpts, files: Sequence[Path], unread: Collection[str] = ()) -> None:
    """Refuse unknown options, and sections whose names resemble the names of groups.

    :param unread: the sections that may have further options.
    :raises ConfigurationError: there is one; the error names the file and a suggestion.
    """
    known = _names(conf)
    sections = {*known, *PLUGIN_GROUPS, *_OF_LIBRARIES, *unread}
    for file, section, options in written(files):
        # The library that reads [cors] also reads sections [cors.NAME].
        if section.partition(".")[0] not in sections:
            if meant := _closest_section(section, sections):
                raise errors.ConfigurationError(
                    reason=f"{file} has a section [{section}], which no service reads: perhaps you mean [{meant}]"
                )
        elif section in known and section not in {*PLUGIN_GROUPS, *unread}:
            _refuse_unknown(file, section, options, known[section])


def warn_of_variables(conf: cfg.ConfigOpts, own: Collection[str]) -> None:
    """Warn of variables of the environment that set no option.

    :param own: the groups whose options are all registered, in which no other program has options.
    """
    variables = [found for name in sorted(os.environ) if (found := _VARIABLE.fullmatch(name))]
    known = _names(conf) if variables else {}
    sections = {*known, *PLUGIN_GROUPS, *_OF_LIBRARIES}
    for found in variables:
        section, option = found[1].lower(), found[2].lower()
        if section in own and option not in known[section]:
            meant = _closest(option, known[section])
            hint = f": perhaps you mean OS_{found[1]}__{meant.upper()}" if meant else ""
            LOG.warning("The environment sets %s, but [%s] has no option %s%s", found[0], section, option, hint)
        elif section not in {*sections, "default"} and (meant := _closest_section(section, sections)):
            hint = f"perhaps you mean OS_{meant.upper()}__{found[2]}"
            LOG.warning("The environment sets %s, but no service reads a section [%s]: %s", found[0], section, hint)


def of_groups(files: Sequence[Path], known: Names) -> None:
    """Refuse unknown options in the groups of ``known``.

    :raises ConfigurationError: there is one; the error names the file and a suggestion.
    """
    for file, section, options in written(files):
        if section in known:
            _refuse_unknown(file, section, options, known[section])


def _refuse_unknown(file: Path, section: str, options: Collection[str], known: Collection[str]) -> None:
    for option in options:
        if option not in known:
            meant = _closest(option, known)
            hint = (
                f"perhaps you mean {meant}" if meant else "remove it, or see `moorage.conf.sample` for those that exist"
            )
            raise errors.ConfigurationError(
                reason=f"{file} sets {option} in [{section}], which is not an option of this section: {hint}"
            )


def _closest_section(name: str, known: Collection[str]) -> str | None:
    if not name.endswith(_DRIVER):
        return _closest(name, known, _SECTIONS_ALIKE)
    # The common ending makes the sections of all drivers alike.
    drivers = [other.removesuffix(_DRIVER) for other in known if other.endswith(_DRIVER)]
    meant = _closest(name.removesuffix(_DRIVER), drivers, _SECTIONS_ALIKE)
    return meant and meant + _DRIVER


def _closest(name: str, known: Collection[str], alike: float = _ALIKE) -> str | None:
    in_lower_case = {other.lower(): other for other in sorted(known)}  # [DEFAULT] has capitals
    found = difflib.get_close_matches(name.lower().replace("-", "_"), in_lower_case, n=1, cutoff=alike)
    return in_lower_case[found[0]] if found else None


def written(files: Sequence[Path]) -> Iterator[tuple[Path, str, Collection[str]]]:
    """Yield each section of each file with the names of its options; section names are case-insensitive."""
    for file in files:
        sections: dict[str, dict[str, object]] = {}
        cfg.ConfigParser(str(file), sections).parse()
        for section, options in sections.items():
            yield file, section if section == "DEFAULT" else section.lower(), options


def _names(conf: cfg.ConfigOpts) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {"DEFAULT": set()}
    for group, options in registered(conf):
        for option in options:
            for section, name in names_of(group, option):
                known.setdefault(section, set()).add(name)
    return known


def names_of(group: str, option: cfg.Opt) -> list[tuple[str, str]]:
    """Return the sections and names under which a file can set an option, the deprecated ones included."""
    former = [(each.group or group, each.name or option.name) for each in option.deprecated_opts]
    return [(group, option.dest), *former]


def registered(conf: cfg.ConfigOpts) -> Iterator[tuple[str, list[cfg.Opt]]]:
    """Yield each group of a configuration with its options."""
    # The library has no public list of registered options.
    yield "DEFAULT", [info["opt"] for info in conf._opts.values()]  # noqa: SLF001
    for name, group in conf._groups.items():  # noqa: SLF001
        yield name, [info["opt"] for info in group._opts.values()]  # noqa: SLF001
