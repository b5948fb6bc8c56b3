"""The addresses of servers as text, and URLs without their passwords."""

import re

_HOST = r"(?:[^:@/,?]*(?::[^:@/,?]*)?@)?[^@/,?]*"
_REGULAR = re.compile(rf"{_HOST}(?:,{_HOST})*(?:[/?][^@]*)?")
#: A parameter of a URL that contains a password, as far as its name tells.
_SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|pwd|secret)[^=&]*=)[^&]*", re.IGNORECASE)


def address(host: str, port: int | str) -> str:
    """Return a host and a port as one text, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_host(name: str) -> None:
    """Check that a name can be that of a host, without looking it up.

    :raises ValueError: no host can have it: the part between two dots is empty or too long. A look-up would raise the
        same error, which is none of the network.
    """
    name.encode("idna")


def mask_url(url: str) -> str:
    """Return ``url`` with every password hidden, also in its parameters, for logs and errors.

    If a password contains reserved characters, its end is ambiguous. Then everything between the first user and the
    last host is hidden.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        # The URL is mistyped. It is shown in the error about it.
        scheme, rest = "", url
    if _REGULAR.fullmatch(rest):
        rest = re.sub(r"((?:^|,)[^:@/,?]*):[^:@/,?]*@", r"\1:***@", rest)
    elif "@" in rest:
        hidden, _, host = rest.rpartition("@")
        rest = f"{hidden.partition(':')[0]}:***@{host}"
    return scheme + mark + _SECRET_PARAMETER.sub(r"\1***", rest)
