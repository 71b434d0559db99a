"""The OpenAPI document against a gateway that runs: whatever it allows or forbids, no answer is a fault of ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from runtime.registry.snapshot import ingress_of
from shared_models.route import RouteSpec
from tests.support.gateway import gateway_process, route_entry
from tests.support.harness import clean_environment, client

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,negative_data_rejection,missing_required_header"
)

CONFIG = """
[parameters]
"path.route" = "hello"
"path.event_id" = "%s"
"""


async def test_no_request_that_the_document_allows_or_forbids_is_a_server_error(server_url, tmp_path):
    spec = RouteSpec.model_validate({"webhook": {"scheme": "github", "secrets": [{"env": "HOOK"}]}})
    async with client(server_url) as c:
        await c.broker.fleet.register([route_entry("hello", ingress=ingress_of(spec))])
        event = await c.send("flows:hello", {"input_value": "hi"})
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG % event)
    with gateway_process(server_url, tmp_path, HOOK="secret") as gateway:
        words = ["--config-file", str(config), "run", f"{gateway.url}/openapi.json", "--checks", CHECKS]
        words += ["--phases", "coverage,fuzzing", "--max-examples", "3", "--generation-deterministic"]
        words += ["--no-color", "--warnings", "off"]
        done = subprocess.run(
            [SCHEMATHESIS, *words],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            cwd=tmp_path,
            env=clean_environment(tmp_path),
        )
        assert done.returncode == 0, re.sub(r"(.)\1{50,}", r"\1…", done.stdout)[-5000:] + done.stderr[-1000:]
        assert "Tested: 0" not in done.stdout
        assert not any("gateway.failed" in line for line in gateway.process.err)
