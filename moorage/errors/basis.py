"""The base class of all errors: its text comes from the docstring, and it crosses the bus as its own class."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

Json = Any  # what json.dumps takes: checked by the contract test that sends every error over both buses


class _Blank(dict[str, object]):
    """Replaces data that an older or newer peer did not send by a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


@dataclass_transform(kw_only_default=True)
class MoorageError(Exception):
    """Something in Moorage went wrong."""

    __module__ = __package__

    code: ClassVar[str] = "moorage.error"

    def __init_subclass__(cls) -> None:
        # Errors travel under the name of this package, so that a class may move from file to file.
        if cls.__module__.startswith(__package__):
            cls.__module__ = __package__

    def __init__(self, **data: Json) -> None:
        # A newer peer may send data that this version does not have: it is dropped, as in every reply.
        self.data: dict[str, Json] = {}
        for name in self.field_names():
            if name in data or hasattr(type(self), name):
                self.data[name] = data[name] if name in data else getattr(type(self), name)
        for name, value in self.data.items():
            if isinstance(value, str) and not value.isascii():
                # Names of files, of which reasons are made, need not be written in UTF-8: databases take nothing else.
                self.data[name] = value.encode("utf-8", "backslashreplace").decode()
            setattr(self, name, self.data[name])
        super().__init__()

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of the data that this error carries."""
        annotations = [vars(base).get("__annotations__", {}) for base in reversed(cls.__mro__)]
        return [name for names in annotations for name in names if name != "code"]

    @property
    def kwargs(self) -> dict[str, Json]:
        """The data that oslo.messaging sends, and passes to the constructor on the other side."""
        return self.data

    def __str__(self) -> str:
        first_paragraph = inspect.cleandoc(self.__doc__ or "").split("\n\n")[0]
        return " ".join(first_paragraph.split()).format_map(_Blank(self.data))

    @property
    def advice(self) -> str:
        """The advice to the operator: the docstring's further paragraphs, if any."""
        _, _, rest = inspect.cleandoc(self.__doc__ or "").partition("\n\n")
        return " ".join(rest.split())

    def __reduce__(self) -> tuple[Callable[..., "MoorageError"], tuple[type["MoorageError"], dict[str, Json]]]:
        return _rebuild, (type(self), self.data)


def _rebuild(kind: type[MoorageError], data: dict[str, Json]) -> MoorageError:
    return kind(**data)


def every_error() -> list[type[MoorageError]]:
    """Return each class of the tree, the root first."""
    found: list[type[MoorageError]] = []
    pending: list[type[MoorageError]] = [MoorageError]
    while pending:
        kind = pending.pop(0)
        found.append(kind)
        pending.extend(kind.__subclasses__())
    return found
