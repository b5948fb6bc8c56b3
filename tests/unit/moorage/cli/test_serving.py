"""Test that a service does not start where no other process could reach it."""

from pathlib import Path

import pytest

from moorage.cli.shell import main


@pytest.mark.parametrize(
    "words",
    [
        "scheduler --name a",
        "conductor --name a",
        "conductor --name a --cell one",
        "compute --cell one --agent a --fake-hosts 1",
        "placement --name a",
        "dashboard --port 0",
    ],
)
def test_a_service_on_the_bus_within_its_process_is_refused_with_what_to_use_instead(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, words: str
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = inproc://\n[database]\nconnection = sqlite:///{tmp_path}/m.sqlite\n")
    monkeypatch.setenv("MOORAGE_CONFIG", str(file))

    assert main(words.split()) == 1

    told = capfd.readouterr()
    # A service that has set up its log writes the sentence there.
    text = " ".join((told.out + told.err).split())
    assert "inproc:// does not leave its process" in text
    assert "Set the URL of a RabbitMQ broker; `moorage demo` runs" in text
