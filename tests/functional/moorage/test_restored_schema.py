"""Test the command that begins a new history of a main schema after a restore."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select
from support.scheduler.rig import Rig

from moorage.cli.shell import main
from placement_store.schema import resource_providers


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    url = f"sqlite:///{tmp_path}/main.sqlite"
    (tmp_path / "moorage.conf").write_text(f"[database]\nconnection = {url}\n")
    started = Rig(url)
    started.add_hosts([1, 2])
    yield started
    started.close()


def upgrade(tmp_path: Path, *words: str) -> int:
    return int(main(("--config-file", str(tmp_path / "moorage.conf"), "db", "upgrade", *words)))


def newest_generation(rig: Rig) -> int:
    newest = select(func.max(resource_providers.c.generation))
    return int(rig.database.read(lambda connection: connection.scalar(newest)) or 0)


def test_only_with_restored_an_upgrade_raises_generations_beyond_all_earlier_ones(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = newest_generation(rig)
    assert upgrade(tmp_path) == upgrade(tmp_path, "--restored", "--dry-run") == 0
    assert newest_generation(rig) == before
    assert upgrade(tmp_path, "--restored") == 0
    assert newest_generation(rig) > before + 1_000_000
    assert upgrade(tmp_path, "--restored", "--schema", "conductor") == 1
    assert "--restored is about the main schema" in capsys.readouterr().err
