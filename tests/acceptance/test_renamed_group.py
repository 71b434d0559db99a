"""A route whose group was renamed: the old one keeps every entry, is told of, and can be given up."""

from __future__ import annotations

import json
from typing import Any

from tests.support.command import in_process, worker
from tests.support.harness import write_flow
from tests.support.servers import RedisServer
from tests.support.topology import until

AUDIT = {"HEADRACE_WORKER__AUDIT_INTERVAL": "0.5"}


def test_a_renamed_group_is_told_of_and_given_up(valkey_server: RedisServer, tmp_path):
    valkey_server.execute("FLUSHALL")
    flows, url = tmp_path / "flows", valkey_server.url
    environ = {"REDIS_URL": url, "HEADRACE_FLOWS": str(flows)}

    def ask(*words: str) -> Any:
        return json.loads(in_process(*words, "--json", **environ).out)

    def run_one() -> None:
        assert in_process("send", "echo", "--input", "x", "--wait", "30", **environ).code == 0

    write_flow(flows, "echo", spec={"group": "before"})
    with worker(url, flows, tmp_path):
        run_one()
    assert valkey_server.execute("XLEN", "flows:echo") == 0
    write_flow(flows, "echo", spec={"group": "after"})
    with worker(url, flows, tmp_path, **AUDIT) as process:
        for _ in range(3):
            run_one()
        assert valkey_server.execute("XLEN", "flows:echo") == 3, "the old group may still need them"
        told = {"stream": "flows:echo", "group": "before", "entries": 3}
        assert ask("status")["left_behind"] == [told]
        assert "flows retire flows:echo before" in in_process("status", **environ).out
        assert any("flows retire flows:echo before" in check["detail"] for check in ask("doctor"))
        process.wait_for("group.left_behind", stream="err")
        assert in_process("flows", "retire", "flows:echo", "after", **environ).code == 1, "the route reads with it"
        valkey_server.execute("XREADGROUP", "GROUP", "before", "a-stranger", "STREAMS", "flows:echo", ">")
        refused = in_process("flows", "retire", "flows:echo", "before", **environ)
        assert (refused.code, "--force" in refused.err) == (1, True)
        assert in_process("flows", "retire", "flows:echo", "before", "--force", **environ).code == 0
        until(lambda: valkey_server.execute("XLEN", "flows:echo") == 0, "the audit to delete what nobody needs")
        run_one()
        assert ask("status")["left_behind"] == []
    assert in_process("flows", "retire", "flows:echo", "before", **environ).code == 1
