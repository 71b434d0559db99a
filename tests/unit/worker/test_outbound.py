"""Which addresses callbacks may go to, whatever a name resolves to."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from runtime.worker.outbound import AddressRefused, NotAnswered, is_public, post
from tests.support.receiver import receiving


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "100.100.100.200", "168.63.129.16", "192.0.0.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "fec0::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::", "2001:0:7f00:1::1",
    ],
)  # fmt: skip
def test_what_is_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_public(address):
    assert is_public(address)


async def send(url, **more):
    given = {"timeout": 5.0, "allow_private": False, "context": httpx.create_ssl_context(), **more}
    return await post(url, b"{}", {"X-Mine": "1"}, **given)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "017700000001", "[::1]", "[::ffff:7f00:1]", "0"]
)
async def test_no_spelling_of_loopback_is_called(host):
    async with receiving() as receiver:
        with pytest.raises((AddressRefused, NotAnswered)):
            await send(f"https://{host}:{receiver.port}/")
        assert not receiver.requests


async def test_plain_http_is_for_private_networks():
    with pytest.raises(AddressRefused, match="https"):
        await send("http://example.com/")


def resolving(monkeypatch, *answers):
    """Answers of the resolver, one after the other, as of a name that changes."""
    asked = []

    async def getaddrinfo(_, host, port, **__):
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_that_resolves_to_a_private_address_is_refused(monkeypatch):
    resolving(monkeypatch, ["169.254.169.254", "10.0.0.1"])
    with pytest.raises(AddressRefused, match="public"):
        await send("https://metadata.example/")


async def test_the_connection_goes_to_the_very_address_that_was_judged(monkeypatch):
    async with receiving() as receiver:
        # Asked a second time, the name would lead elsewhere.
        asked = resolving(monkeypatch, ["127.0.0.1"], ["203.0.113.1"])
        answer = await send(f"http://rebinding.example:{receiver.port}/a?b=c", allow_private=True)
        assert (answer.status, asked) == (204, ["rebinding.example"])
        (request,) = receiver.requests
        assert request.line == "POST /a?b=c HTTP/1.1"
        assert request.headers["host"] == f"rebinding.example:{receiver.port}"
        assert request.headers["x-mine"] == "1"


async def test_the_next_address_is_tried_where_one_is_not_there(monkeypatch):
    async with receiving() as receiver:
        resolving(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        assert (await send(f"http://two.example:{receiver.port}/", allow_private=True)).status == 204


async def test_redirects_are_not_followed_and_proxies_not_used(monkeypatch):
    async with receiving((302, "Location: http://127.0.0.1:9/\r\n")) as receiver:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        assert (await send(receiver.url, allow_private=True)).status == 302
        assert len(receiver.requests) == 1


@pytest.mark.parametrize("url", ["https:///x", "https://[/", "https://exa mple/", "https://nowhere.invalid/"])
async def test_what_is_no_address(url):
    with pytest.raises((AddressRefused, NotAnswered)):
        await send(url)


async def test_tls_is_verified_for_the_name_and_not_for_the_address(monkeypatch, tmp_path):
    made = certificate(tmp_path, "hook.example")
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with receiving(tls=made) as receiver:
        resolving(monkeypatch, ["127.0.0.1"])
        url = f"https://{{}}:{receiver.port}/"
        answer = await send(url.format("hook.example"), allow_private=True, context=context)
        assert answer.status == 204
        for host, trusted in (("other.example", context), ("hook.example", httpx.create_ssl_context())):
            with pytest.raises(NotAnswered, match="CERTIFICATE_VERIFY_FAILED"):
                await send(url.format(host), allow_private=True, context=trusted)
        assert len(receiver.requests) == 1


def certificate(folder: Path, name: str) -> ssl.SSLContext:
    """A server's context with a certificate of its own for a name; the certificate lies in the folder."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    asked = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    asked += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", key, "-out", cert]
    subprocess.run(asked, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context
