from __future__ import annotations

import os

import pytest

from runtime.errors import SettingsError
from runtime.settings import Settings, load_settings, take_secrets_away, variable_names


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("HEADRACE_"):
            monkeypatch.delenv(name)


def loaded(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def test_variables_set_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(
        monkeypatch, HEADRACE_WORKER__CONCURRENCY="20", HEADRACE_FLOWS="/flows", headrace_log__level="debug"
    )
    assert (settings.worker.concurrency, str(settings.flows), settings.log.level) == (20, "/flows", "debug")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HEADRACE_WORKER__CONCURENCY", "HEADRACE_WORKER__CONCURRENCY"),
        ("HEADRACE_WORKR__CONCURRENCY", "HEADRACE_WORKER__CONCURRENCY"),
        ("HEADRACE_WORKER_CONCURRENCY", "HEADRACE_WORKER__CONCURRENCY"),
        ("HEADRACE_REDIS_URL", "HEADRACE_REDIS__URL"),
        ("HEADRACE_FLOW", "HEADRACE_FLOWS"),
        ("headrace_log__levl", "HEADRACE_LOG__LEVEL"),
    ],
)
def test_a_misspelt_name_stops_the_start_and_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(monkeypatch, **{name: "secret-value"})
    assert caught.value.message == f"{name} is not a setting; did you mean {meant}?"


def test_a_name_like_no_other_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="HEADRACE_XYZZY42 is not a setting"):
        loaded(monkeypatch, HEADRACE_XYZZY42="1")


@pytest.mark.parametrize(
    "name",
    ["HEADRACE_SERVICE_HOST", "HEADRACE_SERVICE_PORT", "HEADRACE_SERVICE_PORT_HTTP", "HEADRACE_PORT_8080_TCP_ADDR"],
)
def test_what_kubernetes_says_about_services_is_no_setting(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # A Service named headrace puts these into the environment of every pod in its namespace.
    assert loaded(monkeypatch, **{name: "10.0.0.1"}) == Settings()
    gateway = name.replace("HEADRACE_", "HEADRACE_GATEWAY_")
    assert loaded(monkeypatch, **{gateway: "10.0.0.1"}) == Settings()


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"HEADRACE_WORKER__CONCURRENCY: .*it is '0'"):
        loaded(monkeypatch, HEADRACE_WORKER__CONCURRENCY="0")


def test_the_redis_url_is_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(monkeypatch, HEADRACE_REDIS__URL="redis://:s3cret@host:6379")
    assert "s3cret" not in f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    assert settings.redis.url is not None
    assert settings.redis.url.get_secret_value() == "redis://:s3cret@host:6379"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().worker.concurrency = 5


def test_what_a_flow_must_not_see_is_taken_away() -> None:
    environ = {"HEADRACE_REDIS__URL": "x", "headrace_flows": "y", "REDIS_URL": "z", "OPENAI_API_KEY": "k"}
    take_secrets_away(environ)
    assert environ == {"OPENAI_API_KEY": "k"}


def test_every_variable_is_listed() -> None:
    names = variable_names()
    assert {"HEADRACE_FLOWS", "HEADRACE_REDIS__URL", "HEADRACE_WORKER__LEASE"} <= set(names)
    assert len(names) == len(set(names))


def test_accelerators_are_switched_off_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = loaded(monkeypatch, HEADRACE_ENGINE__ACCELERATORS__CLASSES="false")
    assert settings.engine.accelerators.off == {"classes"}
    with pytest.raises(SettingsError, match="did you mean HEADRACE_ENGINE__ACCELERATORS__CLASSES"):
        loaded(monkeypatch, HEADRACE_ENGINE__ACCELERATORS__CLASES="false")
