"""Parse the CPU and NUMA settings of a flavor and an image.

The names are Nova's: ``hw:cpu_policy`` and the like in extra specs, ``hw_cpu_policy`` and the like in image properties.
The flavor's setting takes precedence. An image that requires more than the flavor has is refused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from filters.extra_specs import path_of
from filters.requests.merging import MAX_GROUPS, image_property
from moorage import errors
from moorage.model import RequestSpec

_POLICY, _THREADS = "cpu_policy", "cpu_thread_policy"
_MASK, _EMULATOR = "cpu_dedicated_mask", "emulator_threads_policy"
_NODES, _CPUS, _MEMORY = "numa_nodes", "numa_cpus", "numa_mem"
_VALUES = {
    _POLICY: ("shared", "dedicated", "mixed"),
    _THREADS: ("prefer", "isolate", "require"),
    _EMULATOR: ("share", "isolate"),
}
_BY_NODE = rf"({_CPUS}|{_MEMORY})\..*"
_OF_FLAVOR = re.compile(rf"hw:({_POLICY}|{_THREADS}|{_MASK}|{_EMULATOR}|{_NODES}|{_BY_NODE})", re.DOTALL)
_OF_IMAGE = re.compile(rf"hw_({_POLICY}|{_THREADS}|{_NODES}|{_BY_NODE})", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,10}")
#: The maximum number of CPUs of a request with settings: more than any host has, and few enough to parse quickly.
_MOST_CPUS = 4096
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class CpuSettings:
    """The CPU and NUMA settings of a request."""

    #: The path of the first setting.
    path: str
    #: The numbers of the server's dedicated CPUs; the others are shared.
    dedicated: frozenset[int]
    #: Whether the emulator threads have an additional dedicated CPU.
    isolated_emulator: bool
    #: Whether the host's CPUs must have siblings (``require``), or must have none (``isolate``).
    threads: str | None
    #: By NUMA node, the numbers of its CPUs and its memory in MiB; empty without NUMA settings.
    nodes: Sequence[tuple[frozenset[int], int]]


def cpu_settings(request: RequestSpec) -> CpuSettings | None:
    """Return the CPU and NUMA settings of a request; None if neither the flavor nor the image has any.

    :raises InvalidRequest: a setting is invalid, or two contradict each other.
    """
    settings = _Settings(request)
    if not settings.paths:
        return None
    if settings.vcpus > _MOST_CPUS:
        reason = f"the flavor has {settings.vcpus} CPUs, and with CPU settings at most {_MOST_CPUS} are allowed"
        raise errors.InvalidRequest(path=settings.paths[0], reason=reason)
    dedicated = _dedicated(settings)
    threads, emulator = _threads(settings), settings.one_of(_EMULATOR)
    isolated = emulator if emulator is not None and emulator.value == "isolate" else None
    if not dedicated:
        for setting in (threads, isolated):
            if setting is not None:
                raise setting.wrong("it is only for dedicated CPUs, and there are none")
    return CpuSettings(
        path=settings.paths[0],
        dedicated=dedicated,
        isolated_emulator=isolated is not None,
        threads=None if threads is None or threads.value == "prefer" else threads.value,
        nodes=_nodes(settings),
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    value: str
    path: str

    def wrong(self, reason: str) -> errors.InvalidRequest:
        return errors.InvalidRequest(path=self.path, reason=reason)


class _Settings:
    """The settings of one request, by their names without the scope."""

    def __init__(self, request: RequestSpec) -> None:
        self.vcpus = request.flavor.vcpus
        self.memory_mb = request.flavor.memory_mb
        self.of_flavor = {
            found[1]: _Setting(value.strip(), path_of(key))
            for key, value in sorted(request.flavor.extra_specs.items())
            if (found := _OF_FLAVOR.fullmatch(key))
        }
        self.of_image = {
            found[1]: _Setting(value.strip(), image_property(name))
            for name, value in sorted(request.image.properties.items())
            if (found := _OF_IMAGE.fullmatch(name))
        }
        self.paths = [setting.path for setting in (*self.of_flavor.values(), *self.of_image.values())]

    def one_of(self, name: str, of_image: bool = False) -> _Setting | None:
        """Return a setting that must have one of a few values."""
        setting = (self.of_image if of_image else self.of_flavor).get(name)
        if setting is not None and setting.value not in _VALUES[name]:
            raise setting.wrong(f"{setting.value!r:.60} is not one of {', '.join(_VALUES[name])}")
        return setting

    def by_node(self, name: str, count: int) -> list[_Setting] | None:
        """Return the setting of each NUMA node; None if no node has one."""
        for settings in (self.of_flavor, self.of_image):
            found = {
                key.removeprefix(f"{name}."): setting for key, setting in settings.items() if key.startswith(f"{name}.")
            }
            for number, setting in found.items():
                if number not in map(str, range(count)):
                    raise setting.wrong(f"there is no NUMA node {number}: the request has {count}")
            if found and len(found) < count:
                raise next(iter(found.values())).wrong("it must be set for each of the NUMA nodes, or for none")
            if found:
                return [found[str(number)] for number in range(count)]
        return None


# --- CPUs -----------------------------------------------------------------------------------------------------------


def _dedicated(settings: _Settings) -> frozenset[int]:
    policy, mask = _policy(settings), settings.of_flavor.get(_MASK)
    if policy is not None and policy.value == "mixed":
        if mask is None:
            raise policy.wrong(f"hw:{_MASK} must name the dedicated CPUs")
        chosen = _cpu_set(mask, settings.vcpus)
        if not 0 < len(chosen) < settings.vcpus:
            raise mask.wrong("with mixed CPUs, some must be dedicated and some not")
        return chosen
    if mask is not None:
        raise mask.wrong("it is only for mixed CPUs")
    dedicates = policy is not None and policy.value == "dedicated"
    return frozenset(range(settings.vcpus)) if dedicates else frozenset()


def _policy(settings: _Settings) -> _Setting | None:
    flavor, image = settings.one_of(_POLICY), settings.one_of(_POLICY, of_image=True)
    if flavor is None:
        return image
    if image is not None and flavor.value != "dedicated" and image.value not in ("shared", flavor.value):
        raise image.wrong(f"the flavor has {flavor.value} CPUs")
    return flavor


def _threads(settings: _Settings) -> _Setting | None:
    flavor, image = settings.one_of(_THREADS), settings.one_of(_THREADS, of_image=True)
    if flavor is None or flavor.value == "prefer":
        return image or flavor
    if image is not None and image.value != flavor.value:
        raise image.wrong(f"the flavor has {flavor.value}")
    return flavor


def _cpu_set(setting: _Setting, vcpus: int) -> frozenset[int]:
    """Parse CPU numbers: ``0-2,5``, or ``^3`` for all but 3 (Nova: ``hw:cpu_dedicated_mask``)."""
    taken: set[int] = set()
    left_out: set[int] = set()
    for part in setting.value.replace(" ", "").split(","):
        found = _RANGE.fullmatch(part.removeprefix("^"))
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not first <= last < vcpus:
            raise setting.wrong(f"{part!r:.60} is neither a CPU nor a range of them; there are {vcpus}, from 0")
        (left_out if part.startswith("^") else taken).update(range(first, last + 1))
    if setting.value.startswith("^"):
        taken.update(range(vcpus))
    return frozenset(taken - left_out)


# --- NUMA nodes -----------------------------------------------------------------------------------------------------


def _nodes(settings: _Settings) -> list[tuple[frozenset[int], int]]:
    flavor, image = settings.of_flavor.get(_NODES), settings.of_image.get(_NODES)
    if flavor is not None and image is not None and image.value != flavor.value:
        raise image.wrong(f"the flavor has {flavor.value:.60}")
    setting = flavor or image
    if setting is None:
        for name, orphan in (*settings.of_flavor.items(), *settings.of_image.items()):
            if name.startswith((f"{_CPUS}.", f"{_MEMORY}.")):
                raise orphan.wrong(f"it needs hw:{_NODES}, the number of NUMA nodes")
        return []
    most = min(settings.vcpus, MAX_GROUPS)
    if not _NUMBER.fullmatch(setting.value) or not 1 <= int(setting.value) <= most:
        raise setting.wrong(f"{setting.value!r:.60} is no number of NUMA nodes from 1 to {most}")
    count = int(setting.value)
    return list(zip(_cpus(settings, setting, count), _memory(settings, setting, count), strict=True))


def _cpus(settings: _Settings, nodes: _Setting, count: int) -> list[frozenset[int]]:
    given = settings.by_node(_CPUS, count)
    if given is None:
        share, rest = divmod(settings.vcpus, count)
        if rest:
            raise nodes.wrong(f"{settings.vcpus} CPUs cannot be shared equally: set hw:{_CPUS}.0 and so on")
        return [frozenset(range(number * share, (number + 1) * share)) for number in range(count)]
    chosen = [_cpu_set(setting, settings.vcpus) for setting in given]
    taken: set[int] = set()
    for setting, numbers in zip(given, chosen, strict=True):
        if not numbers or taken & numbers:
            raise setting.wrong("each NUMA node must have CPUs, and each CPU must be in one NUMA node")
        taken |= numbers
    if len(taken) < settings.vcpus:
        raise given[-1].wrong(f"{settings.vcpus - len(taken)} of {settings.vcpus} CPUs are in no NUMA node")
    return chosen


def _memory(settings: _Settings, nodes: _Setting, count: int) -> list[int]:
    given = settings.by_node(_MEMORY, count)
    if given is None:
        share, rest = divmod(settings.memory_mb, count)
        if rest:
            raise nodes.wrong(f"{settings.memory_mb} MiB cannot be shared equally: set hw:{_MEMORY}.0 and so on")
        return [share] * count
    for setting in given:
        if not _NUMBER.fullmatch(setting.value) or int(setting.value) < 1:
            raise setting.wrong(f"{setting.value!r:.60} is no amount of MiB")
    amounts = [int(setting.value) for setting in given]
    if sum(amounts) != settings.memory_mb:
        raise given[-1].wrong(
            f"the NUMA nodes have {sum(amounts)} MiB together, and the flavor has {settings.memory_mb}"
        )
    return amounts
