"""Redis addresses in all their forms."""

from __future__ import annotations

import pytest

from runtime.broker.address import connect, parse
from runtime.broker.cluster import Cluster, _key, _slot
from runtime.broker.connection import Server
from runtime.broker.keys import RouteKeys, published
from runtime.errors import BrokerError
from runtime.settings import RedisSettings


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "service"),
    [
        ("redis://u:p@h:1/2", "server", (), ""),
        ("unix:///tmp/r.sock", "server", (), ""),
        ("redis+sentinel://h/main", "sentinel", (("h", 26379),), "main"),
        ("redis+sentinel://u:p@a:1,b:2/main/3", "sentinel", (("a", 1), ("b", 2)), "main"),
        ("rediss+sentinel://a,b:2/main", "sentinel", (("a", 26379), ("b", 2)), "main"),
        ("redis+cluster://a,[::1]:7000", "cluster", (("a", 6379), ("::1", 7000)), ""),
        ("rediss+cluster://u:p%2Cq@a:1/0", "cluster", (("a", 1),), ""),
    ],
)
def test_forms(url: str, kind: str, hosts: tuple[object, ...], service: str):
    address = parse(url)
    assert (address.kind, address.hosts, address.service) == (kind, hosts, service)
    assert address.tls == url.startswith("rediss")
    assert isinstance(connect(url, RedisSettings()), Cluster if kind == "cluster" else Server)


def test_what_an_address_says_of_the_client():
    options = parse("rediss+sentinel://u:p%40w@a/main/4?ssl_ca_certs=/ca.pem&sentinel_password=s").options
    assert (options["username"], options["password"], options["db"]) == ("u", "p@w", 4)
    assert (options["ssl_ca_certs"], options["sentinel_password"]) == ("/ca.pem", "s")


@pytest.mark.parametrize(
    "url",
    [
        *("", "h:6379", "http://h", "redis//h", "redis:h", "redis://h:port", "redis+ring://h"),
        *("redis+sentinel://h", "redis+sentinel://h/main/x", "redis+sentinel://h/main/0/1", "redis+sentinel:///main"),
        *("redis+cluster://h/1", "redis+cluster://a,,b", "redis+cluster://a:x", "unix+cluster:///s"),
        *("redis://h?unknown=1", "redis://h?ssl_ca_certs=/ca.pem", "rediss://h?ssl_check_certificate=1"),
    ],
)
def test_what_is_none_is_refused_without_being_told(url: str):
    with pytest.raises(BrokerError, match="not a Redis URL") as refused:
        parse(url)
    assert "unknown" not in refused.value.message


def test_all_keys_of_a_route_lie_in_its_streams_slot():
    for stream in ("flows:a", "{t}:a", "x{t}y"):
        keys = RouteKeys(stream, "g")
        own = (
            keys.due,
            keys.leases,
            keys.obits,
            keys.blocked,
            keys.runs,
            keys.gate("k"),
            keys.run("e"),
            keys.feed("e"),
        )
        assert {_slot(key) for key in (*own, keys.chat("t", "s"), published(stream, "e"))} == {_slot(stream)}


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("XADD", "s", "*", "a", "b"), "s"),
        (("EVALSHA", "x", 2, "k1", "k2", "a"), "k1"),
        (("EVAL", b"return 1", 0), None),
        (("XREAD", "COUNT", 1, "BLOCK", 5, "STREAMS", "s", "0"), "s"),
        (("XGROUP", "CREATE", "s", "g", "0"), "s"),
        (("XINFO", "GROUPS", "s"), "s"),
        (("TIME",), None),
        (("INFO", "server"), None),
    ],
)
def test_the_key_of_a_command(command: tuple[object, ...], key: str | None):
    assert _key(command) == key


@pytest.mark.parametrize(
    "kind", ["BusyLoadingError", "ReadOnlyError", "OutOfMemoryError", "ClusterDownError", "TryAgainError"]
)
def test_what_passes_is_no_refusal(kind: str):
    from redis import exceptions

    from runtime.broker.connection import _translate
    from runtime.errors import BrokerUnavailable

    assert isinstance(_translate(getattr(exceptions, kind)("wait")), BrokerUnavailable)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?socket_timeout=1&protocol=3",
        "rediss://h",
        "unix:///s",
        "redis+sentinel://h/main",
        "redis+cluster://h",
    ],
)
def test_t39_nothing_is_left_to_the_client_librarys_defaults(url: str):
    """They differ between its versions: a socket timeout, repeats, the shape of replies."""
    made = connect(url, RedisSettings(connect_timeout=3.0, command_timeout=7.0))
    server = made._server(made._seeds[0]) if isinstance(made, Cluster) else made
    assert isinstance(server, Server)
    asking = [(client, 3.0) for client in server._also]
    for client, timeout in [(server._commands, 7.0), (server._blocking, None), *asking]:
        connection = client.connection_pool.make_connection()
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (timeout, 3.0)
        assert (connection.protocol, connection.encoder.decode_responses) == (2, False)
        assert (connection.retry._retries, connection.retry_on_error) == (0, [])
        assert (connection.health_check_interval, getattr(connection, "socket_keepalive", True)) == (0, True)
