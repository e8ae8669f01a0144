"""A clone holds the bytes that were committed, whatever line endings its git is set to write."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ATTRIBUTES = ROOT / ".gitattributes"
GIT = shutil.which("git")
pytestmark = pytest.mark.skipif(GIT is None or not (ROOT / ".git").exists(), reason="no git, or no checkout")

WINDOWS = ["-c", "core.autocrlf=true", "-c", "core.eol=crlf"]
"""What Git for Windows does with text, on any system."""
FILES = {
    "README.md": b"one\ntwo\n",
    "conformance/vectors/data/index.json": b'{\n"cases": []\n}\n',
    "conformance/vectors/data/readable.json": b"{\n}\n",
    "conformance/vectors/data/index.sha256": b"00  index.json\n",
    "conformance/vectors/data/mask.safetensors": b"text as far as git sees\r\n\n",
}


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    found = subprocess.run(
        [str(GIT), *who, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=60
    )
    return found.stdout


def cloned(folder: Path, attributes: bytes) -> dict[str, bytes]:
    """The files of a clone whose git writes CRLF, by name."""
    origin, clone = folder / "origin", folder / "clone"
    for name, data in {**FILES, ".gitattributes": attributes}.items():
        path = origin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git(origin, "init", "-q", ".")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "files")
    git(folder, *WINDOWS, "clone", "-q", *WINDOWS, str(origin), str(clone))
    return {name: (clone / name).read_bytes() for name in FILES}


def test_a_clone_that_writes_crlf_keeps_every_byte(tmp_path: Path) -> None:
    assert cloned(tmp_path, ATTRIBUTES.read_bytes()) == FILES


def test_without_the_attributes_it_would_not(tmp_path: Path) -> None:
    changed = {name for name, data in cloned(tmp_path, b"").items() if data != FILES[name]}
    assert changed >= {"README.md", "conformance/vectors/data/index.json"}


def test_data_is_never_converted_and_what_is_made_is_marked() -> None:
    data = [f"conformance/vectors/data/{name}" for name in ("index.json", "readable.json", "x.safetensors")]
    made = [*data, "conformance/defects/kills.json", "spec/INDEX.md"]
    for names, attribute, value in ((data, "text", "unset"), (made, "linguist-generated", "set")):
        said = git(ROOT, "check-attr", attribute, "--", *names).splitlines()
        assert said == [f"{name}: {attribute}: {value}" for name in names]
