"""A target to be collected, in a folder of its own."""

from pathlib import Path

import pytest

from conformance.vectors.generate.write import write
from conformance.vectors.load import load_vectors

TARGET = """
import os, sys
import numpy as np

def good(query, key, value, *, scale=None):
    with open("pids", "a") as file:
        print(os.getpid(), file=file)
    logits = query.astype("f8") @ key.astype("f8").swapaxes(-1, -2)
    logits *= query.shape[-1] ** -0.5 if scale is None else scale
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ value.astype("f8")).astype(query.dtype)
good.features = {"scale"}

def wrong(query, key, value):
    print("printed", file=sys.stderr)
    return good(query, key, value) + 1
wrong.features = set()

def unscaled(query, key, value):
    return good(query, key, value, scale=1.0)
unscaled.features = set()

def refusing(query, key, value):
    raise NotImplementedError("not today")
"""


@pytest.fixture(scope="session")
def few_vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the vectors: every run reads them anew."""
    names = ("attention/hand-sized", "attention/scale-zero", "attention/bias-rank-2", "sizes/d-k-")
    directory = tmp_path_factory.mktemp("few")
    write(directory, [(case, False) for case in load_vectors().cases if case.id.startswith(names)])
    return directory


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, few_vectors: Path) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer to load than the tests
    monkeypatch.setenv("PYTEST_PLUGINS", "conformance.pytest_plugin")
    monkeypatch.setenv("COLUMNS", "200")
    pytester.path.joinpath("mine.py").write_text(TARGET)
    pytester.path.joinpath("conftest.py").write_text(
        "from pathlib import Path\nfrom conformance.vectors import load\n"
        f"load.vectors_directory = lambda: Path({str(few_vectors)!r})\n"
    )
    return pytester
