"""Test that nothing is served if the account by which Keystone's middleware verifies tokens is not configured."""

from pathlib import Path

import pytest
from support.http.fake_keystone import require_middleware

from moorage import errors
from moorage.config import options
from moorage.db.database import Database
from placement_store.db import names
from placement_store.http import wsgi
from placement_store.schema import MAIN

ACCOUNT = "[keystone_authtoken]\nauth_type = password\nauth_url = http://127.0.0.1:1\nusername = u\npassword = p\n"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a store."""
    url = f"sqlite:///{tmp_path}/main.sqlite"
    database = Database(url, MAIN.name)
    MAIN.upgrade(database)
    names.sync(database)
    database.close()
    return url


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ("", "[keystone_authtoken] auth_type is not set"),
        ("[keystone_authtoken]\nauth_type = pasword\n", "[keystone_authtoken] cannot be used: The plugin pasword"),
        ("[keystone_authtoken]\nauth_type = password\n", "[keystone_authtoken] cannot be used: Auth plugin requires"),
    ],
)
def test_a_server_refuses_to_start_if_it_could_verify_no_token(
    url: str, tmp_path: Path, account: str, reason: str
) -> None:
    require_middleware()
    file = tmp_path / "moorage.conf"
    file.write_text(f"[database]\nconnection = {url}\n{account}")
    with pytest.raises(errors.ConfigurationError) as refused:
        wsgi.prepare_once(options.new(files=[file]))
    assert reason in str(refused.value)


def test_a_server_starts_with_an_account_although_keystone_is_away(url: str, tmp_path: Path) -> None:
    require_middleware()
    file = tmp_path / "moorage.conf"
    file.write_text(f"[database]\nconnection = {url}\n{ACCOUNT}")
    conf = options.new(files=[file])
    wsgi.prepare_once(conf)
    assert callable(wsgi.make(conf, 1))
