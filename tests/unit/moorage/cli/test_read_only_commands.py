"""Test which commands are known to change nothing, so that a misspelt column is refused instead of ignored."""

from importlib.metadata import entry_points

from moorage.cli.command import Configured

READING = {"list", "show", "tree", "reconciled", "status"}
CHANGING = {"create", "set", "unset", "delete", "sync", "add-host", "remove-host", "build", "reshape", "migrate"}


def test_exactly_the_commands_that_show_something_only_read() -> None:
    commands = {entry.name: entry.load() for entry in entry_points(group="moorage.cli")}
    reading, changing = (
        {name for name in commands if name.split("_")[-1] in words and issubclass(commands[name], Configured)}
        for words in (READING, CHANGING)
    )
    assert {"instance_show", "cell_list", "resource_provider_tree"} <= reading
    assert {name for name in reading if not commands[name].only_reads} == set()
    assert {name for name in changing if commands[name].only_reads} == set()
