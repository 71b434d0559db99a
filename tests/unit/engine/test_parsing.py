"""Parsing source in several threads at once, as a load does beside runs."""

from __future__ import annotations

import ast
import gc
import sys
import threading

import pytest

from runtime.engine.environment import parse_one_at_a_time

SOURCE = "\n".join(f"def f{n}(a, b): return [a + {n}, (b, {{'x': a}})]" for n in range(60))


class Litter:
    """Garbage whose collection runs Python code, which may let another thread go on."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        sum(range(50))


def test_threads_that_parse_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ast, "parse", ast.parse)
    parse_one_at_a_time()
    parse_one_at_a_time()
    failed: list[str] = []

    def work() -> None:
        for _ in range(15):
            [Litter() for _ in range(20)]
            try:
                ast.parse(SOURCE)
            except SystemError as error:
                failed.append(str(error))

    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
    assert failed == []
    assert ast.parse("1 + 1", mode="eval").body
