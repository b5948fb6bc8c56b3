"""The address of a server as text."""


def address(host: str, port: int | str) -> str:
    """Return a host and a port as one text, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
