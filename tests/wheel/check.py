"""`nox -s wheel`: what would be published is whole, is the same every time, and works where there is no checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from calls import AWAY

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 25 * 2**20
PACKAGES = ("mha_core", "backends", "conformance")


def main() -> int:
    """Exit status 0, or 1 with a line for each thing that is not as it must be.

    A folder, where one is given, gets the wheel and the sdist if nothing is wrong with them.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = built(folder)
        found = [
            *differences(folder, wheel, sdist),
            *sizes(wheel, sdist),
            *contents(wheel, sdist),
            *versions(wheel),
            *installed(folder, wheel),
        ]
        if sys.argv[1:] and not found:
            kept = ROOT / sys.argv[1]
            kept.mkdir(exist_ok=True)
            for file in (wheel, sdist):
                shutil.copy(file, kept)
    for problem in found:
        print(f"WRONG {problem}")
    print(f"{len(found)} problems" if found else f"{wheel.name} is as it must be, and so is {sdist.name}")
    return 1 if found else 0


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs without what would lead back to this checkout."""
    apart = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=apart, capture_output=True, text=True, timeout=300, check=False)


def built(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel made of it; apart from them both again, each from the checkout."""
    for name, kinds in (("once", []), ("again", ["--sdist", "--wheel"])):
        done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / name, *kinds, ROOT)
        if done.returncode:
            raise SystemExit(f"the build failed:\n{done.stdout}{done.stderr}")
    (wheel,), (sdist,) = (list((folder / "once").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    done = run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
    if done.returncode:
        raise SystemExit(f"twine check:\n{done.stdout}{done.stderr}")
    return wheel, sdist


def differences(folder: Path, *files: Path) -> list[str]:
    """Builds that are not the same bytes: of the wheel by way of the sdist and directly, and of the sdist."""
    return [
        f"{file.name} differs from one build to the next"
        for file in files
        if file.read_bytes() != (folder / "again" / file.name).read_bytes()
    ]


def sizes(*files: Path) -> list[str]:
    """Files above the size limit."""
    for file in files:
        print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB")
    return [
        f"{file.name} has more than {MOST_BYTES >> 20} MiB"
        for file in files
        if file.stat().st_size > MOST_BYTES
    ]


def tracked(*folders: str) -> set[str]:
    """The files of some folders that git knows."""
    return set(run("git", "ls-files", "--", *folders).stdout.splitlines())


def contents(wheel: Path, sdist: Path) -> list[str]:
    """Files that lack, or that nobody has committed."""
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = tracked(*PACKAGES) | {f"conformance/{name}" for name in tracked("spec")}
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    whole = {name for name in tracked(".") if not name.startswith((".github/", ".ci/"))}
    return [
        f"{file.name} {'has' if name in there else 'lacks'} {name}"
        for file, there, want in ((wheel, inside, wanted), (sdist, names - {"PKG-INFO"}, whole))
        for name in sorted(there ^ want)
    ]


def versions(wheel: Path) -> list[str]:
    """Places that say another version than conformance/version.py."""
    text = (ROOT / "conformance" / "version.py").read_text("utf-8")
    suite, spec, vectors = (
        re.findall(rf'{name}_VERSION = "(.*)"', text)[0] for name in ("SUITE", "SPEC", "VECTORS")
    )
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = archive.read(metadata).decode()
    places = (
        ("the wheel's metadata", said, f"\nVersion: {suite}\n"),
        ("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text("utf-8"), f"\n## {suite}"),
        ("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text("utf-8"), f"\n### Specification {spec}\n"),
        ("CHANGELOG.md", (ROOT / "CHANGELOG.md").read_text("utf-8"), f"\n### Vectors {vectors}\n"),
        ("spec/README.md", (ROOT / "spec" / "README.md").read_text("utf-8"), f"\nVersion {spec}.\n"),
    )
    return [f"{place} does not say {words.strip()!r}" for place, text, words in places if words not in text]


def installed(folder: Path, wheel: Path) -> list[str]:
    """Calls that do something else in a new environment, in an empty folder."""
    home, empty = folder / "new", folder / "empty"
    empty.mkdir()
    venv.create(home, with_pip=True, symlinks=os.name != "nt")
    bin_ = home / ("Scripts" if os.name == "nt" else "bin")
    python = bin_ / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=empty)
    if done.returncode:
        raise SystemExit(f"the installation failed:\n{done.stdout}{done.stderr}")
    (empty / "attention.py").write_text(readme_function(), "utf-8")
    found = []
    for words, status, said in AWAY:
        program = [python, *words[1:]] if words[0] == "python" else [bin_ / words[0], *words[1:]]
        done = run(*program, cwd=empty)
        told = done.stdout + done.stderr
        if done.returncode != status or said not in told or "Traceback" in told:
            found.append(
                f"`{' '.join(words)}` ended with {done.returncode}, wanted {status} and {said!r}:\n{told[-2000:]}"
            )
    print(f"{len(AWAY)} calls in an empty folder")
    return found


def readme_function() -> str:
    """What README's first quickstart writes."""
    text = (ROOT / "README.md").read_text("utf-8")
    (function,) = re.findall(r"<!-- attention.py -->\n```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return function


if __name__ == "__main__":
    sys.exit(main())
