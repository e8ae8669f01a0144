"""Where the data files lie: `spec/` is next to the packages in a checkout, inside this one in a wheel."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from conformance.errors import UsageError

PACKAGE = Path(__file__).resolve().parent
GONE = "the current folder is no longer there: change to one that is"


def spec_directory() -> Path:
    """The folder of the specification's texts and schemas."""
    installed = PACKAGE / "spec"
    return installed if installed.is_dir() else PACKAGE.parent / "spec"


def vectors_directory() -> Path:
    """The folder of the golden vectors."""
    return PACKAGE / "vectors" / "data"


def template(name: str) -> str:
    """The text of a plug-in to start from; its file ends in .txt, since it is no module of this package."""
    return (PACKAGE / "templates" / f"{name}.txt").read_text("utf-8")


def checkout_project() -> Path | None:
    """The checkout's pyproject.toml; None in an installed wheel, whose metadata says the same."""
    project = PACKAGE.parent / "pyproject.toml"
    return project if project.is_file() else None


@cache
def schema(name: str) -> dict[str, Any]:
    """A JSON schema of spec/schema by its bare name: `report`, `protocol`, ..."""
    loaded: dict[str, Any] = json.loads((spec_directory() / "schema" / f"{name}.json").read_text("utf-8"))
    return loaded


def current_folder() -> Path:
    """The folder that the process is in.

    Raises:
        UsageError: it has been removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(GONE) from error
