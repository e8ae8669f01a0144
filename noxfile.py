"""Everything that can be checked, as nox sessions; CI runs these and nothing else.

`nox -s conformance` runs the matrix, `nox -s tests` the project's own tests, `nox -l` lists the rest.
Where CI is set some sessions take a part of their work, by the number of the commit; where WEEKLY is set too, or
where CI is not set, they take all of it: spec/ci.md.
"""

import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nox
import nox.virtualenv

CI = "CI" in os.environ
SHORT = CI and "WEEKLY" not in os.environ
"""Whether a part of the work will do."""
REPORTS = Path("reports")
RUN_REPORTS: list[str] = []
"""Those that this call of nox has written."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
PROJECT = nox.project.load_toml("pyproject.toml")

# The one release with a small CPU file for Python 3.11; whatever else is installed goes into the same pip command,
# so that nothing pulls another torch.
TORCH = ["torch==2.13.0"] if sys.version_info[:2] == (3, 11) else []
BACKENDS = {
    "numpy": ([], ["numpy"]),
    "array-api-strict": (["array-api-strict>=2.2"], ["array-api-strict"]),
    "torch": (TORCH, ["torch", "torch-portable"]),
    "jax": (["jax>=0.10"], ["jax", "jax-jit"]),
}
"""Session -> what it installs in addition to the project, and the targets that it runs."""
DTYPES = ("float64", "float32", "float16", "bfloat16")
SLOW_TESTS = ("vectors", "oracle", "exploring", "diagnosis", "defects", "test_soundness.py")
"""Tests that derive or search for numbers: half of the time of all tests without a framework."""
SHARDS = {"jax": 16, "jax-jit": 4}
"""Parts of the matrix of JAX at one dtype: what it is asked first it compiles."""
VECTOR_SHARES = 8
"""Parts of the cases that no change has touched."""

OF_OTHERS = nox.project.load_toml(".ci/libraries.toml")
LIBRARIES, MORE_LIBRARIES = OF_OTHERS["releases"], OF_OTHERS["more_releases"]
THIRD_PARTY, MORE_THIRD_PARTY = OF_OTHERS["targets"], OF_OTHERS["more_targets"]
"""Target -> arguments of its run."""
NARROW = {"ATEN_CPU_CAPABILITY": "avx2"}
"""torch's kernels of 256 bits, everywhere: what they make of a NaN depends on how many keys fill a vector."""

EVERYTHING = [*TORCH, *(LIBRARIES if TORCH else BACKENDS["jax"][0]), *BACKENDS["array-api-strict"][0]]
"""What the one environment of .ci/run holds in addition to the project and its dependency groups."""

OTHERS = ["dask>=2025.1", "mlx[cpu]>=0.30", "ndonnx>=0.17", "onnxruntime>=1.32", "array-api-strict>=2.2"]
"""Libraries of the Array API in addition to those of the matrix; ndonnx makes graphs, which onnxruntime runs."""

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = os.environ.get("NOX_DEFAULT_VENV_BACKEND", "venv")
nox.options.reuse_existing_virtualenvs = not CI
nox.options.sessions = ["lint", "types", "conformance", "tests"]
logging.getLogger("nox").addFilter(lambda record: "uv binary not found" not in record.getMessage())

CPU_ONLY = ("numpy", "array-api-strict")
GPU = ["torch>=2.11", "jax[cuda13]>=0.11"]
"""Where the machine brings its own, `nox --no-venv -s gpu` takes those."""
COMMAND = ("python", "-m", "conformance")
"""`mha-conformance`, installed or not."""


def install(session: nox.Session, *requirements: str) -> None:
    """Installs into the session's environment; into one that is there already, under --no-venv, nothing."""
    if isinstance(session.virtualenv, nox.virtualenv.PassthroughEnv):
        session.log(f"with --no-venv nothing is installed; it needs {' '.join(requirements)}")
    else:
        session.install(*requirements, *constraints())


def constraints() -> list[str]:
    """Where CI is set the versions are those of a file; weekly, and elsewhere, the newest that fit."""
    pinned = SHORT and sys.version_info[:2] == (3, 11)
    return ["--constraint", ".ci/constraints.txt"] if pinned else []


def group(name: str) -> list[str]:
    """The requirements of a dependency group."""
    return list(nox.project.dependency_groups(PROJECT, name))


def turn() -> int:
    """The number of commits up to this one: what is taken in turns is taken by it."""
    count = ["git", "rev-list", "--count", "HEAD"]
    return int(subprocess.run(count, capture_output=True, text=True, check=True).stdout)


def kept_compilations() -> dict[str, str]:
    """Environment variables by which JAX keeps what it has compiled in .nox/jax-cache, for each processor apart.

    Only sessions set them: a run of the command compiles everything, unless its user sets them too.
    """
    information = Path("/proc/cpuinfo")
    lines = information.read_text("utf-8").splitlines() if information.exists() else []
    machine = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    words = [platform.machine(), platform.processor(), *sorted(machine)]
    name = hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
    return {
        "JAX_COMPILATION_CACHE_DIR": str(Path(".nox/jax-cache", name).resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@nox.session
def environment(session: nox.Session) -> None:
    """Installs what all of .ci/run needs into the Python that runs nox, by one call of pip: `nox --no-venv`."""
    if not isinstance(session.virtualenv, nox.virtualenv.PassthroughEnv):
        session.error(
            "`nox --no-venv -s environment` fills the environment that nox runs in; others fill theirs"
        )
    groups = [word for name in ("test", "browser", "lint", "types", "build") for word in group(name)]
    words = ["--quiet", "--editable", ".", *EVERYTHING, *groups, *constraints()]
    session.run("python", "-m", "pip", "install", *words)


@nox.session
@nox.parametrize("backend", [nox.param(name, tags=[name]) for name in BACKENDS])
def conformance(session: nox.Session, backend: str) -> None:
    """The matrix: every case at every dtype on one backend. Extra arguments go to `mha-conformance run`."""
    requirements, targets = BACKENDS[backend]
    if backend == "torch" and not TORCH:
        message = "torch is tested on Python 3.11, where a small CPU file of the pinned release exists"
        session.error(message) if CI else session.skip(message)
    device = dict(itertools.pairwise(session.posargs)).get("--device", "cpu")
    if backend in CPU_ONLY and device != "cpu":
        session.skip(f"{backend} has no device {device}")
    install(session, ".", *requirements)
    REPORTS.mkdir(exist_ok=True)
    start = time.monotonic()
    for target in targets:
        report = REPORTS / f"{target}.json"
        arguments = [*(part_of(target) if SHORT else []), *session.posargs]
        session.run(*COMMAND, "run", target, "--report", str(report), *arguments, env=kept_compilations())
        RUN_REPORTS.append(str(report))
    session.log(f"{' and '.join(targets)} took {time.monotonic() - start:.0f} s")
    session.run(*COMMAND, "report", *sorted(RUN_REPORTS))


def part_of(target: str) -> list[str]:
    """The arguments by which JAX is asked a part of the matrix, in turns."""
    if target not in SHARDS:
        return []
    parts = SHARDS[target]
    return ["--shard", f"{turn() % parts + 1}/{parts}", "--dtype", DTYPES[turn() // parts % len(DTYPES)]]


@nox.session
def gpu(session: nox.Session) -> None:
    """Torch and JAX on one GPU, in every precision: spec/gpu.md. Extra arguments go to tests/gpu/matrix.py."""
    install(session, ".", *GPU)
    session.run("python", "tests/gpu/matrix.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The project's own tests, with every framework. Extra arguments go to pytest."""
    frameworks = [requirement for requirements, _ in BACKENDS.values() for requirement in requirements]
    install(session, "-e", ".", *frameworks, *group("test"), *group("browser"))  # trace reads it
    words = session.posargs or ["-n", "2", "--dist", "worksteal"]
    turns = {"TURN": str(turn())} if SHORT else {}
    session.run("pytest", *words, env={**ONE_THREAD, **turns, **kept_compilations()})


@nox.session
def quick(session: nox.Session) -> None:
    """Before a commit, two to three minutes: lint, types, the matrix on NumPy, the fast tests.

    Left out are tests with a framework or a process, and those of SLOW_TESTS; `nox -s tests` runs them all.
    """
    install(session, "-e", ".", *group("lint"), *group("types"), *group("test"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("typos")
    session.run("mypy")
    session.run(*COMMAND, "run", "numpy", "-q")
    words = session.posargs or ["-q", "-n", "2", "--dist", "worksteal"]
    left_out = [f"--ignore=tests/{room}" for room in SLOW_TESTS]
    session.run("pytest", "-m", "not process and not session", *left_out, *words, env=ONE_THREAD)


@nox.session
def readme(session: nox.Session) -> None:
    """Runs the commands of README and the tour, writes the counts that they print, and draws the picture."""
    install(session, "-e", ".", *TORCH, *group("test"))
    pages = ["tests/test_readme.py", "tests/test_tour.py"]
    session.run("pytest", "-q", "-p", "no:xdist", *pages, env={**ONE_THREAD, "WRITE_FIGURES": "1"})


@nox.session
def wheel(session: nox.Session) -> None:
    """Builds what would be published, twice, checks it, and uses it in a new environment away from here.

    `nox -s wheel -- dist` keeps it in that folder; the release does so.
    """
    install(session, *group("build"))
    session.run("python", "tests/wheel/check.py", *session.posargs)


@nox.session
def third_party(session: nox.Session) -> None:
    """Real libraries against the suite, each with its known deviations, in one table; and the official ONNX cases."""
    if not TORCH:
        message = "torch is tested on Python 3.11, where a small CPU file of the pinned release exists"
        session.error(message) if CI else session.skip(message)
    more = {} if SHORT else MORE_THIRD_PARTY
    install(session, "-e", ".", *TORCH, *LIBRARIES, *(MORE_LIBRARIES if more else []), *group("test"))
    REPORTS.mkdir(exist_ok=True)
    reports = []
    for target, arguments in {**THIRD_PARTY, **more}.items():
        reports.append(f"{REPORTS}/{target}.json")
        # A variant of a row that happens to pass may meet a known deviation: no fresh ones.
        words = ["--report", reports[-1], "--baseline", f"backends/known/{target}.toml", "--fresh", "off"]
        env = {**ONE_THREAD, **NARROW, **kept_compilations()}
        session.run("mha-conformance", "run", target, "-q", *words, *arguments, env=env)
    rooms = ("tests/third_party", "tests/backends/test_third_party.py")
    session.run("pytest", *rooms, "-q", env={**ONE_THREAD, **NARROW})
    session.run("python", "tests/third_party/table.py", *reports)


@nox.session
def site(session: nox.Session) -> None:
    """The public site in build/site-source/site, of reports: `nox -s site -- reports/torch-mha.json --address https://...`.

    Without reports it takes those that `nox -s third_party` has written.
    """
    install(session, "-e", ".", *group("site"))
    source, words = Path("build/site-source"), list(session.posargs)
    if not any(word.endswith(".json") for word in words):
        words += [
            str(path)
            for target in (*THIRD_PARTY, *MORE_THIRD_PARTY)
            if (path := REPORTS / f"{target}.json").is_file()
        ]
    shutil.rmtree(source, ignore_errors=True)
    session.run("python", "-m", "conformance.telling.site", *words, "--out", str(source))
    session.run("zensical", "build", "--strict", "--clean", "-f", str(source / "mkdocs.yml"))
    session.run("python", "tests/telling/built_site.py", str(source / "site"))


@nox.session
def lowest(session: nox.Session) -> None:
    """The oldest release of every dependency that pyproject.toml admits: the matrix without frameworks, the tests."""
    strict = BACKENDS["array-api-strict"][0]
    session.install("-e", ".", *strict, *group("test"), "--constraint", ".ci/lowest.txt")
    for target in CPU_ONLY:
        session.run(*COMMAND, "run", target, "-q")
    session.run("pytest", "-n", "2", "--dist", "worksteal", *session.posargs, env=ONE_THREAD)


@nox.session
def others(session: nox.Session) -> None:
    """Array libraries that the core was not written for: dask, MLX, ndonnx; memory; the programs of spec/scale.md."""
    install(session, "-e", ".", *OTHERS, *group("test"))
    session.run("pytest", "tests/others", "tests/scale/test_page.py", "-q", *session.posargs, env=ONE_THREAD)
    REPORTS.mkdir(exist_ok=True)
    session.run("mha-conformance", "run", "mlx", "-q", "--report", str(REPORTS / "mlx.json"), env=ONE_THREAD)


@nox.session
def onnx_comparison(session: nox.Session) -> None:
    """The bank's defects under the official ONNX cases and under this suite, by four tolerances."""
    install(session, "-e", ".", *TORCH, *LIBRARIES, *group("oracle"))
    arguments = session.posargs or ["-j", "2"]
    session.run("python", "tests/third_party/onnx_comparison.py", *arguments, env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """The linter, the formatter and the spelling; `nox -s lint -- fix` mends what can be mended."""
    install(session, *group("lint"))
    fix = "fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("typos", *(["--write-changes"] if fix else []))


@nox.session
def types(session: nox.Session) -> None:
    """The type checker, strict."""
    install(session, ".", *group("types"), *group("oracle"), *group("test"))
    session.run("mypy")


@nox.session
def vectors(session: nox.Session) -> None:
    """Regenerates the golden vectors and finds no difference; `nox -s vectors -- write` rebuilds them.

    Names of chapters and cases choose: `nox -s vectors -- write mask/empty-row-is-zero`. Where CI is set, the cases
    whose declarations changed and one of eight parts of the rest, in turns.
    """
    install(session, "-e", ".", *group("oracle"))
    names = [word for word in session.posargs if word != "write"]
    words = names if "write" in session.posargs else ["--check", *names]
    if SHORT and not session.posargs:
        words += ["--changed", "--share", f"{turn() % VECTOR_SHARES + 1}/{VECTOR_SHARES}", "-j", "1"]
    session.run("python", "-m", "conformance.vectors.generate", *words, env=ONE_THREAD)


@nox.session
def verify(session: nox.Session) -> None:
    """Proves every golden value again in three ways, and counts the elements. Extra arguments go to the command."""
    install(session, "-e", ".", *group("oracle"))
    session.run("mha-conformance", "vectors", "verify", *session.posargs, env=ONE_THREAD)


@nox.session
def soundness(session: nox.Session) -> None:
    """Correct implementations on new random cases: no rule may refuse one; `nox -s soundness -- --seed 7`.

    With `-- --quick` few cases of a fixed seed, in about a minute; with `-- --unobservable 1000` the defects that
    the bank says nothing can show.
    """
    frameworks = [requirement for requirements, _ in BACKENDS.values() for requirement in requirements]
    install(session, "-e", ".", *frameworks, *group("oracle"))
    words = session.posargs or (["--quick"] if SHORT else [])
    session.run("python", "-m", "conformance.soundness", *words, env={**ONE_THREAD, **kept_compilations()})


@nox.session
def diagnosis(session: nox.Session) -> None:
    """Counts how often the right mistake is named first; `nox -s diagnosis -- --each 1` takes the whole bank."""
    install(session, "-e", ".")
    session.run("python", "tests/diagnosis/measure.py", *session.posargs, env=ONE_THREAD)


@nox.session
def defects(session: nox.Session) -> None:
    """Plants every defect of the bank and prints the kill matrix; `nox -s defects -- write` stores who is caught.

    Where CI is set, what is stored is confirmed, and the search is made where bank, judge or vectors have changed.
    """
    install(session, "-e", ".")
    words = ["--write" if word == "write" else word for word in session.posargs]
    words = words or (["--recorded", "--search-if-stale"] if SHORT else [])
    session.run("python", "-m", "conformance.defects", *words, env=ONE_THREAD)


@nox.session
def hardening(session: nox.Session) -> None:
    """Fuzzing at depth, fifty runs that are killed, twenty targets in a row: the figures of spec/hardening.md.

    The environment variable HARDENING is the depth: how many times as many examples as in `tests`.
    """
    install(session, "-e", ".", *group("test"))
    deep = {**ONE_THREAD, "HARDENING": os.environ.get("HARDENING", "10")}
    words = ["-q", "--durations", "10"]
    session.run("pytest", "tests/hardening", *words, *session.posargs, env=deep)
    session.run("python", "tests/hardening/kills.py", env=ONE_THREAD)
    session.run("python", "tests/hardening/load.py", env=ONE_THREAD)


@nox.session
def mutation(session: nox.Session) -> None:
    """Small mistakes put into judge, runner and loaders, one after another: which of them no test sees.

    Every third is tried, in each function the first, fourth, seventh and so on; `-- "*"` tries all.
    """
    install(session, "-e", ".", *group("test"), "array-api-strict>=2.2", "mutmut==3.8.1")
    words = session.posargs or ["*[147]"]
    # Without its compiled modules each worker would take a second longer to start.
    session.run(
        "mutmut", "run", "--max-children", "2", *words, env={**ONE_THREAD, "PYTHONDONTWRITEBYTECODE": ""}
    )
    session.run("python", "tests/hardening/mutants.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Speed and memory compared with other libraries, into reports/bench; `nox -s bench -- decode long` measures some.

    With `-- --write` spec/bench.md gets the table too; with `-- --resume` what is in reports/bench is not measured
    again. Ends with the table of targets and of what was reached, from tests/benching/targets.toml.
    Nothing here fails for being slow: the figures are for readers, and hold for the machine that they name.
    """
    if not TORCH:
        session.error("the rivals of the bench need Python 3.11, where a small CPU file of torch exists")
    install(session, ".", *TORCH, *LIBRARIES)
    session.run("python", "tests/benching/bench.py", str(REPORTS / "bench"), *session.posargs)
