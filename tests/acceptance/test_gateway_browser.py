"""The browser's own EventSource, in a headless Chromium: it goes on over a replaced gateway, and stops at the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, async_playwright

from shared_models.result import RunEventType
from tests.support.followers import hands, sent
from tests.support.gateway import gateway_process
from tests.support.servers import free_port

CHROMIUM = "/usr/bin/chromium"

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

PAGE = """<!doctype html><title>runs</title><script>
const seen = [], kinds = [];
function follow(url) {
  window.source = new EventSource(url);
  for (const kind of ["queued", "component_ended", "completed", "gap", "end"])
    source.addEventListener(kind, event => {
      kinds.push(kind);
      const n = JSON.parse(event.data).n;
      if (n !== undefined) seen.push(n);
    });
}
</script>"""

DEADLINE = 30


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Another origin, with one page."""
    (tmp_path / "index.html").write_text(PAGE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def until(page: Page, expression: str) -> None:
    await page.wait_for_function(expression, timeout=DEADLINE * 1000)


async def test_a_browser_follows_a_run_over_a_gateway_that_is_replaced(server_url, site, tmp_path):
    if shutil.which(CHROMIUM) is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium, and CI may skip nothing")
        pytest.skip("there is no chromium")
    port = str(free_port())

    def gateway():
        return gateway_process(server_url, tmp_path, "--port", port, HEADRACE_GATEWAY__CORS=site)

    async with hands(server_url) as worker, async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page()
        await page.goto(site)
        with gateway() as first:
            async with httpx.AsyncClient(base_url=first.url) as http:
                event = await sent(http, "a")
            await page.evaluate("url => follow(url)", f"{first.url}/v1/runs/{event}/events")
            await worker.tell(event, [(RunEventType.COMPONENT_ENDED, n) for n in range(5)])
            await until(page, "seen.length == 5")
            await asyncio.to_thread(first.process.stop)
        await worker.tell(event, [(RunEventType.COMPONENT_ENDED, n) for n in range(5, 10)])
        with gateway():
            await until(page, "seen.length == 10")
            await worker.end(event)
            # The page does not close it: after the end the browser comes once more, and is told to stop.
            await until(page, "source.readyState == EventSource.CLOSED")
            assert await page.evaluate("seen") == [*range(10), -1]
            assert await page.evaluate("kinds") == ["queued", *["component_ended"] * 10, "completed", "end"]
        await browser.close()
