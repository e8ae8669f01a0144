"""What `list backends` says of each: its library, the version of it, and a sentence."""

from collections.abc import Callable

import numpy as np

from conformance.running.locating import implementations
from conformance.telling.installed import MISSING, described

Called = Callable[..., tuple[int, str, str]]


def test_a_backend_with_its_library() -> None:
    about, libraries = described("backends.numpy_backend")
    assert about == "mha_core on NumPy arrays."
    assert f"numpy {np.__version__}" in libraries


def test_a_library_that_is_not_here() -> None:
    found = {name: described(place)[1] for name, place in implementations().items()}
    assert [name for name, libraries in found.items() if not libraries] == ["onnx-backend"], (
        "it imports none itself"
    )
    assert described("no.such.module") == ("", "")
    assert described("sys") == ("", "")
    assert MISSING == "not installed"


def test_the_list(command: Called) -> None:
    status, out, _ = command("list", "backends")
    assert status == 0
    assert f"numpy {np.__version__}" in out
    assert "mha_core on NumPy arrays." in out
