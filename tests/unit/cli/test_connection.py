"""Which Redis a command talks to."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cli.connection import find_url, given_url
from runtime.errors import BrokerUnavailable
from runtime.settings import RedisSettings, Settings

EMBEDDED = "redis://:secret@127.0.0.1:4000/0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def settings(url: str | None = None) -> Settings:
    return Settings(redis=RedisSettings.model_validate({"url": url}))


def write_address(folder: Path) -> None:
    (folder / ".headrace").mkdir()
    (folder / ".headrace" / "redis.url").write_text(EMBEDDED + "\n")


def test_the_order(folder: Path) -> None:
    write_address(folder)
    environ = {"REDIS_URL": "redis://env"}
    assert find_url("redis://option", settings("redis://setting"), environ) == "redis://option"
    assert find_url(None, settings("redis://setting"), environ) == "redis://setting"
    assert find_url(None, settings(), environ) == "redis://env"
    assert find_url(None, settings(), {}) == EMBEDDED


def test_an_empty_variable_is_none(folder: Path) -> None:
    assert given_url(None, settings(), {"REDIS_URL": ""}) is None


def test_the_data_folder_of_the_settings_is_looked_at(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "elsewhere"
    data.mkdir()
    (data / "redis.url").write_text(EMBEDDED)
    assert find_url(None, settings().model_copy(update={"data": data}), {}) == EMBEDDED


def test_none_says_what_to_do(folder: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="headrace up"):
        find_url(None, settings(), {})


@pytest.mark.parametrize("url", ["localhost:6379", "http://x", "redis//x", "redis://host:port"])
def test_what_is_no_redis_url_is_refused(folder: Path, url: str) -> None:
    from runtime.errors import SettingsError

    with pytest.raises(SettingsError, match="not a Redis URL"):
        find_url(url, settings(), {})
