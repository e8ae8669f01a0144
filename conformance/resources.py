"""Where the suite's data lies: beside the code in a wheel, one folder up in a checkout."""

import functools
import json
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def vectors_directory() -> Path:
    """The folder of the shipped golden vectors."""
    return _HERE / "vectors" / "data"


def spec_directory() -> Path:
    """The folder of the spec's text and schemas."""
    installed = _HERE / "spec"
    return installed if installed.is_dir() else _HERE.parent / "spec"


@functools.cache
def schema(name: str) -> Any:
    """A JSON Schema of spec/schema by its stem: vectors, report, protocol."""
    return json.loads((spec_directory() / "schema" / f"{name}.json").read_text(encoding="utf-8"))
