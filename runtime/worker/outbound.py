"""HTTP to addresses that others have named: never to one that is not public, whatever its name resolves to.

The name is resolved once, its addresses are judged, and the connection goes to one of those that passed: a name that
resolves otherwise a moment later changes nothing. Redirects are not followed, proxies not used, answers not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

MAX_TRIES = 3
"""Addresses of a name that are tried."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
_METADATA = frozenset({ipaddress.ip_address("168.63.129.16")})
"""Of Azure: an address of the public range that answers inside only."""


class AddressRefused(Exception):
    """The address may not be called."""


class NotAnswered(Exception):
    """The address could not be reached, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, but for its body."""

    status: int
    headers: httpx.Headers


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,  # noqa: ASYNC109  it bounds the parts as well
    allow_private: bool,
    context: ssl.SSLContext,
) -> Answer:
    """POST a body; ``timeout`` in seconds for all of it. Raises AddressRefused and NotAnswered."""
    try:
        where = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise AddressRefused(f"is not a URL: {error}") from error
    if where.scheme != "https" and not allow_private:
        raise AddressRefused("is not https")
    try:
        async with asyncio.timeout(timeout):
            addresses = await _allowed(where, allow_private=allow_private)
            return await _first_that_answers(where, addresses, body, headers, timeout=timeout, context=context)
    except TimeoutError as error:
        raise NotAnswered(f"did not answer within {timeout:g} s") from error


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet's, also one that stands within an IPv6 address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(one is not None and not is_public(str(one)) for one in inner):
            return False
        if address.ipv4_mapped is not None or address in _NAT64:
            return True
        if address not in _UNICAST:  # forms of other ages hold IPv4 addresses too
            return False
    return address.is_global and not address.is_multicast and address not in _METADATA


async def _allowed(where: httpx.URL, *, allow_private: bool) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            where.raw_host.decode("ascii"), where.port or _port(where), type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise NotAnswered(f"has no address: {getattr(error, 'strerror', None) or error}") from error
    addresses = list(dict.fromkeys(str(place[0]) for *_, place in found))
    good = [address for address in addresses if allow_private or is_public(address)]
    if not good:
        raise AddressRefused("is not a public address")
    return good[:MAX_TRIES]


async def _first_that_answers(
    where: httpx.URL,
    addresses: list[str],
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,  # noqa: ASYNC109  as above
    context: ssl.SSLContext,
) -> Answer:
    host = where.raw_host.decode("ascii")
    told = {**headers, "Host": where.netloc.decode("ascii")}
    # Nothing is kept open: two names of one address must not share a connection that was verified for one of them.
    limits = httpx.Limits(max_keepalive_connections=0)
    transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)
    problem = ""
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client:
        for address in addresses:
            there = where.copy_with(host=address.partition("%")[0])
            asked = client.build_request("POST", there, content=body, headers=told, extensions={"sni_hostname": host})
            asked.extensions["timeout"] = httpx.Timeout(timeout, connect=timeout / len(addresses)).as_dict()
            try:
                answer = await client.send(asked, stream=True, follow_redirects=False)
            except httpx.ConnectError as error:
                problem = f"cannot be reached: {error or type(error).__name__}"
                continue
            except (httpx.HTTPError, ssl.SSLError, OSError) as error:
                raise NotAnswered(f"did not answer: {str(error) or type(error).__name__}") from error
            await answer.aclose()
            return Answer(answer.status_code, answer.headers)
    raise NotAnswered(problem)


def _port(where: httpx.URL) -> int:
    return 443 if where.scheme == "https" else 80
