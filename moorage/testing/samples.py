"""Random clouds and requests in which the values that a plug-in reads are often present, and often just absent."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage import errors
from moorage.ids import derived
from moorage.model import UNSUFFIXED, Destination, RequestSpec, ResourceGroup, ServerGroup
from moorage.model.moves import GroupPolicy
from moorage.plugin import Host
from moorage.plugin.hints import neighbours_named
from moorage.testing.builders import host, inventory, request
from moorage.testing.hosts import ListedHosts

#: The most hosts of a sample. Arbitrary, and small, so that a failure is easy to read.
_MOST_HOSTS = 4
_HOSTS = [f"host{number}" for number in range(_MOST_HOSTS)]
_POLICIES: Sequence[GroupPolicy] = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")
_GROUP = derived("moorage.testing", "group", 0)
_CELLS = [derived("moorage.testing", "cell", number) for number in range(2)]
_AGGREGATES = [derived("moorage.testing", "aggregate", number) for number in range(2)]


@dataclass(frozen=True, slots=True)
class Words:
    """The names that a plug-in reads beyond those of every host and request, each with its possible values.

    Each is left out of some hosts, or requests. Invalid values belong here as well.
    """

    #: Attributes from drivers; a name with dots stands for nested names.
    attributes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: Metadata of host aggregates.
    metadata: Mapping[str, Sequence[str]] = field(default_factory=dict)
    traits: Sequence[str] = ()
    #: Further resource classes of hosts and requests, beside ``VCPU``, ``MEMORY_MB`` and ``DISK_GB``.
    resource_classes: Sequence[str] = ()
    extra_specs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hints: Mapping[str, Sequence[str]] = field(default_factory=dict)
    image_properties: Mapping[str, Sequence[str]] = field(default_factory=dict)
    availability_zones: Sequence[str] = ("nova", "other")
    projects: Sequence[str] = ("project", "stranger")


@dataclass(frozen=True, slots=True)
class Sample:
    """A random cloud and a request on it."""

    view: ListedHosts
    request: RequestSpec


def samples(words: Words, count: int, seed: int = 0) -> Iterator[Sample]:
    """Yield ``count`` random samples, the same ones for the same words and seed."""
    for number in range(count):
        draw = _Draw(words, random.Random(f"{seed}/{number}"))
        asked = draw.request()
        yield Sample(ListedHosts(draw.hosts(asked)), asked)


class _Draw:
    def __init__(self, words: Words, chance: random.Random) -> None:
        self._words = words
        self._chance = chance

    def hosts(self, asked: RequestSpec) -> list[Host]:
        members = [self._chance.choice([0, 0, 1, 2]) for _ in range(self._chance.randint(0, _MOST_HOSTS))]
        try:
            named = sorted(neighbours_named(asked))
        except errors.InvalidRequest:
            named = []
        return [
            self._host(
                number,
                group_members_here=here,
                group_members_elsewhere=sum(members) - here,
                neighbours=frozenset(self._part(named, 0.5)),
            )
            for number, here in enumerate(members)
        ]

    def request(self) -> RequestSpec:
        chance, words = self._chance, self._words
        group = None
        if chance.random() < 0.3:
            policy = chance.choice(_POLICIES)
            group = ServerGroup(uuid=_GROUP, policy=policy, max_server_per_host=chance.randint(1, 2))
        wanted = None
        if chance.random() < 0.15:
            wanted = Destination(host=chance.choice([None, *_HOSTS]), cell=chance.choice([None, *_CELLS]))
        groups = {suffix: self._group() for suffix in self._part([UNSUFFIXED, "_A", "_B"], 0.25)}
        root_required = self._part(words.traits, 0.2)
        return request(
            vcpus=chance.randint(1, 8),
            memory_mb=chance.choice([1, 512, 4096]),
            root_gb=chance.randint(0, 4),
            extra_specs=self._some(words.extra_specs),
            image_properties=self._some(words.image_properties),
            hints=self._some(words.hints),
            project_id=chance.choice(list(words.projects)),
            availability_zone=chance.choice([None, *words.availability_zones]),
            server_group=group,
            is_volume_backed=chance.random() < 0.3,
            force_hosts=self._part(_HOSTS, 0.1),
            ignore_hosts=self._part(_HOSTS, 0.15),
            groups=groups,
            group_policy=chance.choice(["none", "isolate"]) if len(groups) > 1 else None,
            root_required=root_required,
            root_forbidden=self._part([trait for trait in words.traits if trait not in root_required], 0.2),
            requested_destination=wanted,
        )

    def _group(self) -> ResourceGroup:
        chance, words = self._chance, self._words
        return ResourceGroup(
            resources={chance.choice(list(words.resource_classes) or ["VCPU"]): chance.randint(1, 2)},
            required=self._part(words.traits, 0.2),
            member_of=tuple((uuid,) for uuid in self._part(_AGGREGATES, 0.1)),
        )

    def _host(self, number: int, **given: Any) -> Host:
        chance, words = self._chance, self._words
        traits, aggregates = self._part(words.traits, 0.5), self._part(_AGGREGATES, 0.5)
        flat = chance.random() < 0.6
        usual = host(number)
        return host(
            number,
            availability_zone=chance.choice(list(words.availability_zones)),
            up=chance.random() < 0.8,
            disabled=chance.random() < 0.2,
            forced_down=chance.random() < 0.1,
            flat=flat,
            # Its second provider, unless it is flat, has a number that no host has.
            providers=frozenset([*usual.providers, *(() if flat else host(number + _MOST_HOSTS).providers)]),
            inventories=self._inventories(1 if flat else 2),
            attributes=_nested(self._some(words.attributes)),
            metadata=self._metadata(),
            traits=frozenset(traits),
            root_traits=frozenset(traits if flat else self._part(traits, 0.7)),
            aggregates=frozenset(aggregates),
            root_aggregates=frozenset(aggregates if flat else self._part(aggregates, 0.7)),
            instances=chance.randint(0, 3),
            io_ops=chance.randint(0, 3),
            failed_builds=chance.choice([0.0, 0.5, 3.0]),
            cell_uuid=chance.choice(_CELLS),
            image_properties=self._servers_by_property(),
            **given,
        )

    def _servers_by_property(self) -> dict[str, int]:
        known = [f"{name}={value}" for name, values in self._words.image_properties.items() for value in values]
        return {name: self._chance.randint(1, 3) for name in self._part(known, 0.4)}

    def _inventories(self, providers: int) -> dict[str, Any]:
        chance = self._chance
        classes = [name for name in ("VCPU", "MEMORY_MB", "DISK_GB") if chance.random() < 0.9]
        classes += [name for name in self._words.resource_classes if chance.random() < 0.6]
        return {
            name: [
                self._inventory(1024 if name == "MEMORY_MB" else 1) for _ in range(self._chance.randint(1, providers))
            ]
            for name in classes
        }

    def _inventory(self, unit: int) -> Any:
        chance = self._chance
        total = chance.randint(1, 8) * unit
        return inventory(
            total,
            used=chance.randint(0, 8) * unit,
            reserved=chance.choice([0, 0, unit]),
            max_unit=chance.choice([total, 2**31 - 1]),
            allocation_ratio=chance.choice([1.0, 1.5, 4.0]),
        )

    def _metadata(self) -> dict[str, frozenset[str]]:
        chance, chosen = self._chance, {}
        for key, values in self._words.metadata.items():
            # A host may be in several aggregates.
            count = min(chance.choice([0, 1, 1, 2]), len(values))
            if count:
                chosen[key] = frozenset(chance.sample(list(values), count))
        return chosen

    def _part(self, values: Sequence[str], share: float) -> tuple[str, ...]:
        return tuple(value for value in values if self._chance.random() < share)

    def _some(self, pools: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        chance = self._chance
        return {name: chance.choice(list(values)) for name, values in pools.items() if chance.random() < 0.7}


def _nested(chosen: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in chosen.items():
        *above, last = path.split(".")
        within = found
        for name in above:
            outer = within.get(name)
            # A copy, because other samples have the same value; what is no object is replaced.
            within[name] = inner = dict(outer) if isinstance(outer, Mapping) else {}
            within = inner
        within[last] = value
    return found
