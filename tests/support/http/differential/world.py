"""The small set of names that requests use, and a request as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

from moorage import ids
from placement_store.http.versions import MAX

PROVIDERS = [ids.derived("differential provider", number) for number in range(5)]
CONSUMERS = [ids.derived("differential consumer", number) for number in range(3)]
AGGREGATES = [ids.derived("differential aggregate", number) for number in range(2)]
NOBODY = ids.derived("differential", "nobody")
CLASSES = ["VCPU", "MEMORY_MB", "CUSTOM_A"]
TRAITS = ["HW_CPU_X86_AVX2", "STORAGE_DISK_SSD", "CUSTOM_T", "MISC_SHARES_VIA_AGGREGATE"]
PROJECTS, USERS, TYPES = ["red", "blue"], ["ann", "bob"], ["INSTANCE", "MIGRATION"]
NEWEST = MAX.minor


@dataclass(frozen=True)
class Generation:
    """Stands in a body for the generation of a provider or consumer on the server that gets the request, plus a number.

    It is null for a consumer that the server does not have.
    """

    uuid: str
    plus: int = 0


@dataclass(frozen=True)
class Request:
    """One request; its body is bytes, or JSON that may contain :class:`Generation`."""

    method: str
    path: str
    version: str | None = f"1.{NEWEST}"
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The path with its query."""
        return self.path + (
            "?" + "&".join(f"{n}={quote(one, safe=':,!')}" for n, one in self.query) if self.query else ""
        )

    @property
    def is_limited(self) -> bool:
        """Return whether the request limits the number of candidates."""
        return self.path == "/allocation_candidates" and any(name == "limit" for name, _ in self.query)

    def __str__(self) -> str:
        more = "".join(f" {part}" for part in (self.body, dict(self.headers)) if part)
        return f"{self.version} {self.method} {self.url}{more}"


Draw = Callable[[st.SearchStrategy[Any]], Any]


class PartPicker:
    """Picks the parts of one request."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def one(self, choices: list[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def rarely(self, one_in: int = 12) -> bool:
        return bool(self.draw(st.integers(0, one_in - 1)) == one_in - 1)

    def some(self, choices: list[Any], at_least: int = 0, at_most: int = 3) -> list[Any]:
        return list(self.draw(st.lists(st.sampled_from(choices), min_size=at_least, max_size=at_most, unique=True)))

    def minor(self, since: int = 0) -> int:
        if self.rarely(20):
            since = 0
        return NEWEST if self.draw(st.booleans()) else int(self.draw(st.integers(since, NEWEST)))

    def provider(self) -> str:
        return NOBODY if self.rarely(15) else str(self.one(PROVIDERS))

    def resource_class(self) -> str:
        return "CUSTOM_NONE" if self.rarely(15) else str(self.one(CLASSES))

    def trait(self) -> str:
        return "CUSTOM_NONE" if self.rarely(20) else str(self.one(TRAITS))

    def generation(self, uuid: str) -> Generation:
        return Generation(uuid, self.one([-1, 1]) if self.rarely() else 0)

    def amounts(self, most: int = 4) -> dict[str, int]:
        amount = st.integers(1, most)
        return {self.resource_class(): self.draw(amount) for _ in range(self.draw(st.integers(1, 2)))}

    def inventory(self) -> dict[str, Any]:
        found: dict[str, Any] = {"total": self.draw(st.integers(1, 8))}
        for name, values in _INVENTORY_FIELDS.items():
            if self.rarely(4):
                found[name] = self.one(values)
        return found

    def inventories(self) -> dict[str, Any]:
        return {self.resource_class(): self.inventory() for _ in range(self.draw(st.integers(0, 3)))}

    def allocations(self) -> dict[str, Any]:
        at_least = 0 if self.rarely(6) else 1
        found: dict[str, Any] = {}
        for uuid in self.some(PROVIDERS, at_least, 2):
            part: dict[str, Any] = {"resources": self.amounts()}
            if self.rarely(10):
                part["generation"] = 1
            found[self.provider() if self.rarely(20) else uuid] = part
        return found

    def consumer(self, uuid: str, minor: int) -> dict[str, Any]:
        """The allocations of one consumer as PUT and POST take them from 1.12."""
        found: dict[str, Any] = {"allocations": self.allocations()}
        found |= {"project_id": self.one(PROJECTS), "user_id": self.one(USERS)}
        if minor >= 28:
            found["consumer_generation"] = self.generation(uuid)
        if minor >= 34 and self.rarely(4):
            found["mappings"] = self.one([{}, {"": [PROVIDERS[0]]}, {"_A": [PROVIDERS[0], PROVIDERS[1]]}, {"": []}])
        if minor >= 38:
            found["consumer_type"] = self.one(TYPES)
        return found


_INVENTORY_FIELDS: dict[str, list[Any]] = {
    "reserved": [0, 1, 4, 9],
    "min_unit": [1, 2],
    "max_unit": [1, 2, 4],
    "step_size": [1, 2],
    "allocation_ratio": [1.0, 0.5, 1.5, 2, 16.0],
    "resource_provider_generation": [0, 3],
}
