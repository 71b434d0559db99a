"""The bundles that are found without taking every package's list of files apart are the engine's own."""

from __future__ import annotations

from lfx.extension.loader import installed_extension_roots

from runtime.engine import catalog


def test_every_extension_that_the_engine_would_find_is_found() -> None:
    theirs = {str(name): root for name, root in installed_extension_roots().items()}
    assert theirs
    assert dict(catalog.extension_roots()) == theirs
