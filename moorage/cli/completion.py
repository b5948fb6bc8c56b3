"""The command `moorage complete`: completion scripts for bash, zsh and fish, for all commands and options.

A script contains all words and starts no process, so that completion is immediate.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from cliff.command import Command

from moorage.cli import help as helps

if TYPE_CHECKING:
    from moorage.cli.shell import Shell

#: The words that may follow each beginning of a command line; a key has the words of the beginning, the program first.
Words = Mapping[str, Sequence[str]]

_BASH = """# Completion of {program} for bash; made by `{program} complete --shell bash`.
declare -gA _{program}_words=(
{table}
)
_{program}() {{
    local name={program} word next skip=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        if [[ -n $skip ]]; then skip=""; continue; fi
        next="$name $word"
        if [[ -n ${{_{program}_words[$next]+known}} ]]; then name=$next
        elif [[ $name == {program} && $word == -* ]]; then [[ $word == --*-file ]] && skip=yes
        else break; fi
    done
    mapfile -t COMPREPLY < <(compgen -W "${{_{program}_words[$name]}}" -- "${{COMP_WORDS[COMP_CWORD]}}")
}}
complete -o default -F _{program} {program}
"""
_ZSH = """#compdef {program}
# Completion of {program} for zsh; made by `{program} complete --shell zsh`.
typeset -gA _{program}_words
_{program}_words=(
{table}
)
_{program}() {{
    local name={program} word next skip=""
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        if [[ -n $skip ]]; then skip=""; continue; fi
        next="$name $word"
        if (( ${{+_{program}_words[$next]}} )); then name=$next
        elif [[ $name == {program} && $word == -* ]]; then [[ $word == --*-file ]] && skip=yes
        else break; fi
    done
    compadd -- ${{=_{program}_words[$name]}} || _files
}}
compdef _{program} {program}
"""
_FISH = """# Completion of {program} for fish; made by `{program} complete --shell fish`.
function __{program}_words --argument-names name
    switch $name
{table}
    case '*'
        return 1
    end
end
function __{program}_next
    set -l name {program}
    set -l skip
    for word in (commandline -opc)[2..-1]
        if test -n "$skip"
            set skip
        else if __{program}_words "$name $word" >/dev/null
            set name "$name $word"
        else if test $name = {program}; and string match -q -- '-*' $word
            string match -q -- '--*-file' $word; and set skip yes
        else
            break
        end
    end
    __{program}_words $name
end
complete -c {program} -a '(__{program}_next)'
"""


def words_of(app: "Shell") -> dict[str, list[str]]:
    """Return the words that may follow each beginning of a command line: the rest of a command's name, and options."""
    found: dict[str, list[str]] = {app.NAME: _options(app.parser)}
    for name, _ in app.command_manager:
        parts = name.split()
        for count in range(len(parts)):
            following = found.setdefault(" ".join([app.NAME, *parts[:count]]), [])
            if parts[count] not in following:
                following.append(parts[count])
        command: Any = app.command_manager.commands[name].load()
        parser = command(app, None, name).get_parser(f"{app.NAME} {name}")
        found.setdefault(f"{app.NAME} {name}", []).extend(_options(parser))
    return {name: sorted(words, key=lambda word: (word.startswith("-"), word)) for name, words in found.items()}


def script(shell: str, program: str, words: Words) -> str:
    """Return the completion script for a shell: ``bash``, ``zsh`` or ``fish``."""
    if shell == "fish":
        lines = [f"    case '{name}'\n        printf '%s\\n' {' '.join(of)}" for name, of in sorted(words.items())]
        return _FISH.format(program=program, table="\n".join(lines))
    template, entry = (_BASH, '    ["{}"]="{}"') if shell == "bash" else (_ZSH, "    '{}' '{}'")
    lines = [entry.format(name, " ".join(of)) for name, of in sorted(words.items())]
    return template.format(program=program, table="\n".join(lines))


class Complete(Command):
    """Print a shell completion script for commands and options.

    To install it for all users of bash: moorage complete > /etc/bash_completion.d/moorage. For zsh, save it as
    _moorage in a directory of $fpath; for fish, as moorage.fish in ~/.config/fish/completions.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of this command."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        helps.in_one_line(parser)
        parser.add_argument(
            "--shell",
            choices=("bash", "zsh", "fish"),
            default="bash",
            help="Shell to write the script for (default: bash)",
        )
        return parser

    def get_epilog(self) -> str:
        """Return the end of the help, which is empty; cliff would search every installed package for it."""
        return ""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the script."""
        app = cast("Shell", self.app)
        app.stdout.write(script(parsed_args.shell, app.NAME, words_of(app)))
        return 0


def _options(parser: argparse.ArgumentParser) -> list[str]:
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)  # noqa: SLF001
    return [option for action in shown for option in action.option_strings if option.startswith("--")]
