"""The base class of all errors: the text of an error comes from its docstring, and the bus keeps its class."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

Json = Any  # a value that json.dumps accepts: a contract test sends every error over both buses


class _Blank(dict[str, object]):
    """Replaces data that an older or newer peer has not sent by a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


@dataclass_transform(kw_only_default=True)
class MoorageError(Exception):
    """Something in Moorage went wrong."""

    __module__ = __package__

    code: ClassVar[str] = "moorage.error"

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        if code is not None:
            cls.code = code
        # Errors travel under the name of this package, so that a class may move to another file.
        if cls.__module__.startswith(__package__):
            cls.__module__ = __package__

    def __init__(self, **data: Json) -> None:
        # A newer peer may send data that this version does not have. It is dropped, as in every reply.
        self.data: dict[str, Json] = {}
        for name in self.field_names():
            if name in data or hasattr(type(self), name):
                value = data[name] if name in data else getattr(type(self), name)
                if isinstance(value, str) and not value.isascii():
                    # A reason may contain a file name that is not valid UTF-8, which databases would not accept.
                    value = value.encode("utf-8", "backslashreplace").decode()
                self.data[name] = value
                setattr(self, name, value)
        super().__init__()

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of the data of this error."""
        annotations = [vars(base).get("__annotations__", {}) for base in reversed(cls.__mro__)]
        return [name for names in annotations for name in names if name != "code"]

    @property
    def kwargs(self) -> dict[str, Json]:
        """The data that oslo.messaging sends, and passes to the constructor at the receiver."""
        return self.data

    def __str__(self) -> str:
        first_paragraph = inspect.cleandoc(self.__doc__ or "").split("\n\n")[0]
        return " ".join(first_paragraph.split()).format_map(_Blank(self.data))

    @property
    def with_code(self) -> str:
        """The text followed by the code in brackets: operators look errors up by their codes."""
        return f"{self} ({self.code})"

    @property
    def advice(self) -> str:
        """The advice to the operator: the paragraphs after the first one of the docstring, if any."""
        _, _, rest = inspect.cleandoc(self.__doc__ or "").partition("\n\n")
        return " ".join(rest.split())

    def __reduce__(self) -> tuple[Callable[..., "MoorageError"], tuple[type["MoorageError"], dict[str, Json]]]:
        return _rebuild, (type(self), self.data)


def _rebuild(kind: type[MoorageError], data: dict[str, Json]) -> MoorageError:
    return kind(**data)


def every_error() -> list[type[MoorageError]]:
    """Return each class of the tree, the root first."""
    found: list[type[MoorageError]] = [MoorageError]
    for kind in found:  # which grows meanwhile
        found.extend(kind.__subclasses__())
    return found
