"""Test that completion scripts and manual pages have each command and each option."""

import resource
import subprocess
from pathlib import Path

import pytest
from support.processes.private_servers import program

from moorage.cli import completion, manual
from moorage.cli.shell import Shell, main

SHELL = Shell()
WORDS = completion.words_of(SHELL)
COMMANDS = [name for name, _ in SHELL.command_manager]


def test_the_words_include_every_command_and_its_options() -> None:
    for name in COMMANDS:
        first, _, last = f"moorage {name}".rpartition(" ")
        assert last in WORDS[first]
        assert "--help" in WORDS[f"moorage {name}"]
    assert {"--config-file", "instance"} <= set(WORDS["moorage"])
    assert {"--watch", "--limit", "--sort", "--name"} <= set(WORDS["moorage instance list"])
    assert "--sort-column" not in WORDS["moorage instance list"]


def completed(tmp_path: Path, line: str) -> list[str]:
    """Complete a line in a real bash."""
    file = tmp_path / "moorage.bash"
    file.write_text(completion.script("bash", "moorage", WORDS))
    words = line.split(" ")
    typed = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _moorage"
    program = f"source {file}; {asked}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    ran = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    assert completed(tmp_path, "moorage inst") == ["instance"]
    assert completed(tmp_path, "moorage instance sh") == ["shelve", "show"]
    assert completed(tmp_path, "moorage --config-file x.conf host li") == ["list"]
    assert completed(tmp_path, "moorage instance list --proj") == ["--project"]
    assert "--watch" in completed(tmp_path, "moorage instance list --project p --w")
    assert completed(tmp_path, "moorage nonsense x") == []


def test_bash_answers_within_a_fifth_of_a_second_of_processor_time(tmp_path: Path) -> None:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    completed(tmp_path, "moorage ")
    times = []
    for _ in range(5):
        before = used()
        completed(tmp_path, "moorage instance ")
        times.append(used() - before)
    assert min(times) < 0.2  # with the start of a shell, which waits for nothing


def test_the_scripts_for_other_shells_have_the_same_words() -> None:
    zsh, fish = (completion.script(shell, "moorage", WORDS) for shell in ("zsh", "fish"))
    assert zsh.startswith("#compdef moorage\n")
    for name, words in WORDS.items():
        assert f"'{name}' '{' '.join(words)}'" in zsh
        assert f"    case '{name}'\n        printf '%s\\n' {' '.join(words)}\n" in fish


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_for_other_shells_are_accepted_by_them(shell: str, tmp_path: Path) -> None:
    program(shell, shell)
    file = tmp_path / "script"
    file.write_text(completion.script(shell, "moorage", WORDS))
    subprocess.run([shell, "-n", str(file)], check=True, capture_output=True)


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--shell", "zsh"]) == 0
    assert capsys.readouterr().out == completion.script("zsh", "moorage", WORDS)


def test_each_command_has_a_manual_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--man", str(tmp_path)]) == 0
    assert f"{len(COMMANDS) + 1} pages" in capsys.readouterr().out
    names = {"moorage", *("-".join(["moorage", *name.split()]) for name in COMMANDS)}
    assert {file.stem for file in tmp_path.iterdir()} == names
    page = (tmp_path / "moorage-instance-list.1").read_text()
    assert ".SH NAME\nmoorage-instance-list \\- List instances" in page
    assert "\\-\\-project NAME" in page


def test_groff_finds_no_fault_in_the_manual_pages() -> None:
    program("groff", "groff")
    text = "".join(text for _, text in manual.pages(Shell()))
    ran = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-k"], input=text, capture_output=True, text=True, check=True
    )
    assert "cannot" not in ran.stderr
    assert "warning" not in ran.stderr.replace("can't break line", "")
    assert "moorage instance build" in ran.stdout


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main(["help", "--man", str(tmp_path / "file")]) == 1
