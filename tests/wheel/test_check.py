"""The guards of `nox -s wheel` fire, and its calls are the command's own."""

import io
import tarfile
import zipfile
from pathlib import Path

import check
import pytest
from calls import AWAY

from conformance.cli.commands import COMMANDS
from conformance.version import SUITE_VERSION


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A wheel and an sdist that lack all but one file, and have one that nobody has committed."""
    wheel, sdist = tmp_path / "x.whl", tmp_path / "x.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("mha_core/__init__.py", "mha_core/nobody.py", "x.dist-info/METADATA"):
            archive.writestr(name, f"Name: x\nVersion: {SUITE_VERSION}1\n")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("x/noxfile.py", "x/spec/nobody.md", "x/PKG-INFO"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    return wheel, sdist


def test_a_file_too_many_and_those_that_lack(files: tuple[Path, Path]) -> None:
    if not check.tracked("."):
        pytest.skip("this is no clone")
    found = check.contents(*files)
    assert {"x.whl has mha_core/nobody.py", "x.tar.gz has spec/nobody.md"} <= set(found)
    assert {"x.whl lacks conformance/spec/mask.md", "x.tar.gz lacks tests/conftest.py"} <= set(found)
    assert not {"x.whl lacks mha_core/__init__.py", "x.tar.gz lacks noxfile.py"} & set(found)
    assert not [line for line in found if "METADATA" in line or "PKG-INFO" in line or ".github" in line]


def test_other_bytes_other_versions_and_too_many_bytes(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again").mkdir()
    for file in files:
        (tmp_path / "again" / file.name).write_bytes(file.read_bytes())
    assert check.differences(tmp_path, *files) == []
    (tmp_path / "again" / "x.whl").write_bytes(b"")
    assert check.differences(tmp_path, *files) == ["x.whl differs from one build to the next"]
    assert check.versions(files[0]) == [f"the wheel's metadata does not say 'Version: {SUITE_VERSION}'"]
    assert check.sizes(*files) == []
    monkeypatch.setattr(check, "MOST_BYTES", 1)
    assert len(check.sizes(*files)) == 2


def test_the_calls_exist() -> None:
    assert {status for _, status, _ in AWAY} == {0, 2}
    assert all(said for *_, said in AWAY)
    for words, _, _ in AWAY:
        assert words[0] == "python" or words[1] == "--version" or words[1] in COMMANDS


def test_readme_holds_the_function() -> None:
    assert "def attention(query" in check.readme_function()
