"""Changes of this process's metrics since a moment, because other tests count in the same process."""

from collections.abc import Callable, Mapping

from moorage import metrics

Key = tuple[str, frozenset[tuple[str, str]]]


def _all() -> Mapping[Key, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in metrics.REGISTRY.collect()
        for sample in family.samples
    }


class Counts:
    """The differences between the values now and at the creation of this object."""

    def __init__(self) -> None:
        self._before = _all()

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the increase of a sample by the values of a label, without zeros; other labels are summed."""
        return self._grown(name, labels, lambda found: found[label])

    def of(self, name: str, **labels: str) -> float:
        """Return the increase of a sample, summed over the labels that are not given."""
        return self._grown(name, labels, lambda _found: "").get("", 0.0)

    def _grown(self, name: str, labels: Mapping[str, str], key: Callable[[dict[str, str]], str]) -> dict[str, float]:
        grown: dict[str, float] = {}
        for (found_name, found), value in _all().items():
            difference = value - self._before.get((found_name, found), 0.0)
            if found_name == name and labels.items() <= dict(found).items() and difference:
                grown[key(dict(found))] = grown.get(key(dict(found)), 0.0) + difference
        return grown
