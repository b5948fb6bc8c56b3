"""What a flavor and an image say of a server's CPUs and of its NUMA nodes, put together.

The words are Nova's: ``hw:cpu_policy`` and its like in extra specs, ``hw_cpu_policy`` and its like in image properties.
Where both say something the flavor's word counts, and an image that asks for more than it has is refused.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from filters.requests.merging import MAX_GROUPS, extra_spec, image_property
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
#: Each is a number in a set here; no host has as many, and no request shall take seconds to read.
_MOST_CPUS = 4096
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")


@dataclass(frozen=True, slots=True)
class CpuWords:
    """What is asked for."""

    #: Where the first word of it stands.
    path: str
    #: Which of the server's CPUs, by number, are to be a host's own; the others share.
    dedicated: frozenset[int]
    #: One dedicated CPU more, for what the hypervisor does for the server.
    isolated_emulator: bool
    #: Whether the host's CPUs must have siblings (``require``), or must have none (``isolate``).
    threads: str | None
    #: By NUMA node, the numbers of its CPUs and its memory in MiB; nothing where no nodes are asked for.
    nodes: Sequence[tuple[frozenset[int], int]]


def cpu_words(request: RequestSpec) -> CpuWords | None:
    """Return what is asked for; nothing where neither the flavor nor the image says anything of CPUs or NUMA nodes.

    :raises InvalidRequest: a word is not as it must be, or two contradict each other.
    """
    words = _Words(request)
    if not words.paths:
        return None
    if words.vcpus > _MOST_CPUS:
        reason = f"the flavor has {words.vcpus} CPUs, and of more than {_MOST_CPUS} nothing can be said"
        raise errors.InvalidRequest(path=words.paths[0], reason=reason)
    dedicated = _dedicated(words)
    threads, emulator = _threads(words), words.one_of(_EMULATOR)
    isolated = emulator if emulator is not None and emulator.value == "isolate" else None
    if not dedicated:
        for word in (threads, isolated):
            if word is not None:
                raise word.wrong("there are no dedicated CPUs that it could be about")
    return CpuWords(
        path=words.paths[0],
        dedicated=dedicated,
        isolated_emulator=isolated is not None,
        threads=None if threads is None or threads.value == "prefer" else threads.value,
        nodes=_nodes(words),
    )


@dataclass(frozen=True, slots=True)
class _Word:
    """What is said under one name, and where."""

    value: str
    path: str

    def wrong(self, reason: str) -> errors.InvalidRequest:
        return errors.InvalidRequest(path=self.path, reason=reason)


class _Words:
    """The words of one request, by their names without the scope."""

    def __init__(self, request: RequestSpec) -> None:
        self.vcpus = request.flavor.vcpus
        self.memory_mb = request.flavor.memory_mb
        self.of_flavor = {
            found[1]: _Word(value.strip(), extra_spec(key))
            for key, value in sorted(request.flavor.extra_specs.items())
            if (found := _OF_FLAVOR.fullmatch(key))
        }
        self.of_image = {
            found[1]: _Word(value.strip(), image_property(name))
            for name, value in sorted(request.image.properties.items())
            if (found := _OF_IMAGE.fullmatch(name))
        }
        self.paths = [word.path for word in (*self.of_flavor.values(), *self.of_image.values())]

    def one_of(self, name: str, of_image: bool = False) -> _Word | None:
        """Return a word that must be one of a few."""
        word = (self.of_image if of_image else self.of_flavor).get(name)
        if word is not None and word.value not in _VALUES[name]:
            raise word.wrong(f"{word.value!r:.60} is none of {', '.join(_VALUES[name])}")
        return word

    def by_node(self, name: str, count: int) -> list[_Word] | None:
        """Return a word for each NUMA node; nothing, where there is none for any."""
        for words in (self.of_flavor, self.of_image):
            found = {key.removeprefix(f"{name}."): word for key, word in words.items() if key.startswith(f"{name}.")}
            for number, word in found.items():
                if number not in map(str, range(count)):
                    raise word.wrong(f"there is no NUMA node {number}: {count} are asked for")
            if found and len(found) < count:
                raise next(iter(found.values())).wrong("it must be said for each of the NUMA nodes, or for none")
            if found:
                return [found[str(number)] for number in range(count)]
        return None


# --- CPUs -----------------------------------------------------------------------------------------------------------


def _dedicated(words: _Words) -> frozenset[int]:
    """Return which CPUs are dedicated."""
    policy, mask = _policy(words), words.of_flavor.get(_MASK)
    if policy is not None and policy.value == "mixed":
        if mask is None:
            raise policy.wrong(f"which of the CPUs are dedicated is to be said by hw:{_MASK}")
        chosen = _cpu_set(mask, words.vcpus)
        if not 0 < len(chosen) < words.vcpus:
            raise mask.wrong("of mixed CPUs some are dedicated and some are not")
        return chosen
    if mask is not None:
        raise mask.wrong("only mixed CPUs have one")
    dedicates = policy is not None and policy.value == "dedicated"
    return frozenset(range(words.vcpus)) if dedicates else frozenset()


def _policy(words: _Words) -> _Word | None:
    flavor, image = words.one_of(_POLICY), words.one_of(_POLICY, of_image=True)
    if flavor is None:
        return image
    if image is not None and flavor.value != "dedicated" and image.value not in ("shared", flavor.value):
        raise image.wrong(f"the flavor has {flavor.value} CPUs")
    return flavor


def _threads(words: _Words) -> _Word | None:
    flavor, image = words.one_of(_THREADS), words.one_of(_THREADS, of_image=True)
    if flavor is None or flavor.value == "prefer":
        return image or flavor
    if image is not None and image.value != flavor.value:
        raise image.wrong(f"the flavor says {flavor.value}")
    return flavor


def _cpu_set(word: _Word, vcpus: int) -> frozenset[int]:
    """Return the numbers of ``0-2,5`` or ``^3``, which is all but that one (Nova: ``hw:cpu_dedicated_mask``)."""
    taken: set[int] = set()
    left_out: set[int] = set()
    for part in word.value.replace(" ", "").split(","):
        found = _RANGE.fullmatch(part.removeprefix("^"))
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not first <= last < vcpus:
            raise word.wrong(f"{part!r:.60} is neither a CPU nor a range of them; there are {vcpus}, from 0")
        (left_out if part.startswith("^") else taken).update(range(first, last + 1))
    if word.value.startswith("^"):
        taken.update(range(vcpus))
    return frozenset(taken - left_out)


# --- NUMA nodes -----------------------------------------------------------------------------------------------------


def _nodes(words: _Words) -> list[tuple[frozenset[int], int]]:
    flavor, image = words.of_flavor.get(_NODES), words.of_image.get(_NODES)
    if flavor is not None and image is not None and image.value != flavor.value:
        raise image.wrong(f"the flavor has {flavor.value:.60}")
    word = flavor or image
    if word is None:
        for orphan in _of_nodes(words):
            raise orphan.wrong(f"only where hw:{_NODES} says how many NUMA nodes there are")
        return []
    most = min(words.vcpus, MAX_GROUPS)
    if not _NUMBER.fullmatch(word.value) or not 1 <= int(word.value) <= most:
        raise word.wrong(f"{word.value!r:.60} is no number of NUMA nodes from 1 to {most}")
    count = int(word.value)
    return list(zip(_cpus(words, word, count), _memory(words, word, count), strict=True))


def _of_nodes(words: _Words) -> Iterator[_Word]:
    for names in (words.of_flavor, words.of_image):
        yield from (word for name, word in names.items() if name.startswith((f"{_CPUS}.", f"{_MEMORY}.")))


def _cpus(words: _Words, nodes: _Word, count: int) -> list[frozenset[int]]:
    said = words.by_node(_CPUS, count)
    if said is None:
        share, rest = divmod(words.vcpus, count)
        if rest:
            raise nodes.wrong(f"{words.vcpus} CPUs cannot be shared equally: say hw:{_CPUS}.0 and so on")
        return [frozenset(range(number * share, (number + 1) * share)) for number in range(count)]
    chosen = [_cpu_set(word, words.vcpus) for word in said]
    taken: set[int] = set()
    for word, numbers in zip(said, chosen, strict=True):
        if not numbers or taken & numbers:
            raise word.wrong("each NUMA node has CPUs, and each CPU is of one NUMA node")
        taken |= numbers
    if len(taken) < words.vcpus:
        raise said[-1].wrong(f"{words.vcpus - len(taken)} of {words.vcpus} CPUs are of no NUMA node")
    return chosen


def _memory(words: _Words, nodes: _Word, count: int) -> list[int]:
    said = words.by_node(_MEMORY, count)
    if said is None:
        share, rest = divmod(words.memory_mb, count)
        if rest:
            raise nodes.wrong(f"{words.memory_mb} MiB cannot be shared equally: say hw:{_MEMORY}.0 and so on")
        return [share] * count
    for word in said:
        if not _NUMBER.fullmatch(word.value) or int(word.value) < 1:
            raise word.wrong(f"{word.value!r:.60} is no amount of MiB")
    amounts = [int(word.value) for word in said]
    if sum(amounts) != words.memory_mb:
        raise said[-1].wrong(f"the NUMA nodes have {sum(amounts)} MiB together, and the flavor has {words.memory_mb}")
    return amounts
