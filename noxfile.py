"""Everything that can be checked, as nox sessions; CI runs these and nothing else.

`nox -s conformance` runs the matrix, `nox -s tests` the project's own tests, `nox -l` lists the rest.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import nox
import nox.virtualenv

CI = "CI" in os.environ
STARTED = time.time()
REPORTS = Path("reports")
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
"""Session -> what it installs beside the project, and the targets that it runs."""
SHORTENED = {
    "jax": ["--dtype", "float32"],
    "jax-jit": ["--dtype", "float64", "--dtype", "bfloat16"],
}
"""Target -> arguments where CI is set: each row compiles anew there, so each dtype is asked once at most."""

LIBRARIES = ["onnx==1.23.2", "onnxruntime==1.32.0", "keras==3.15.1", "jax==0.10.2"]
"""What backends/known was written for: another release deviates elsewhere, and is a run of its own."""
THIRD_PARTY = {
    "torch-sdpa-math": [],
    "torch-sdpa-flash": [],
    "torch-mha": [],
    "onnx-reference": [],
    "onnxruntime": [],
    "onnxruntime-contrib": [],
    "keras": [],
    # One compilation a shape: left out are gradients and float64, which backends/known has too, and 16 bits.
    "jax-nn": ["--dtype", "float32", "--op", "scaled_dot_product_attention", "-j", "2"],
}
"""Target -> arguments of its run."""

OTHERS = ["dask>=2025.1", "mlx[cpu]>=0.30", "ndonnx>=0.17", "onnxruntime>=1.32", "array-api-strict>=2.2"]
"""Libraries of the Array API beside those of the matrix; ndonnx makes graphs, which onnxruntime runs."""

nox.needs_version = ">=2024.10"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = not CI
nox.options.sessions = ["lint", "types", "conformance", "tests"]


CPU_ONLY = ("numpy", "array-api-strict")
GPU = ["torch>=2.11", "jax[cuda13]>=0.11"]
"""Where the machine brings its own, `nox --no-venv -s gpu` takes those."""
COMMAND = ("python", "-m", "conformance")
"""`mha-conformance`, installed or not."""


def install(session: nox.Session, *requirements: str) -> None:
    """Installs into the session's environment; into that of the machine, under --no-venv, nothing."""
    if isinstance(session.virtualenv, nox.virtualenv.PassthroughEnv):
        session.log(f"with --no-venv nothing is installed; it needs {' '.join(requirements)}")
    else:
        session.install(*requirements)


def group(name: str) -> list[str]:
    """The requirements of a dependency group."""
    return list(nox.project.dependency_groups(PROJECT, name))


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
        jobs = ["-j", "2"] if backend == "jax" else []  # compiles every operation anew for every shape
        arguments = [*jobs, *(SHORTENED.get(target, []) if CI else []), *session.posargs]
        session.run(*COMMAND, "run", target, "--report", str(report), *arguments)
    session.log(f"{' and '.join(targets)} took {time.monotonic() - start:.0f} s")
    fresh = sorted(str(path) for path in REPORTS.glob("*.json") if path.stat().st_mtime >= STARTED)
    session.run(*COMMAND, "report", *fresh)


@nox.session
def gpu(session: nox.Session) -> None:
    """Torch and JAX on one GPU, in every precision: spec/gpu.md. Extra arguments go to tests/gpu/matrix.py."""
    install(session, ".", *GPU)
    session.run("python", "tests/gpu/matrix.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """The project's own tests, with every framework. Extra arguments go to pytest."""
    frameworks = [requirement for requirements, _ in BACKENDS.values() for requirement in requirements]
    session.install("-e", ".", *frameworks, *group("test"), *group("browser"))  # trace reads it
    session.run("pytest", *(session.posargs or ["-n", "2"]), env=ONE_THREAD)


@nox.session
def wheel(session: nox.Session) -> None:
    """Builds what would be published, twice, checks it, and uses it in a new environment away from here."""
    session.install(*group("build"))
    session.run("python", "tests/wheel/check.py")


@nox.session
def third_party(session: nox.Session) -> None:
    """Real libraries against the suite, each with its known deviations, in one table; and the official ONNX cases."""
    if not TORCH:
        message = "torch is tested on Python 3.11, where a small CPU file of the pinned release exists"
        session.error(message) if CI else session.skip(message)
    session.install("-e", ".", *TORCH, *LIBRARIES, *group("test"))
    REPORTS.mkdir(exist_ok=True)
    reports = []
    for target, arguments in THIRD_PARTY.items():
        reports.append(f"{REPORTS}/{target}.json")
        known = f"backends/known/{target}.toml"
        session.run(
            "mha-conformance",
            "run",
            target,
            "-q",
            "--report",
            reports[-1],
            "--baseline",
            known,
            "--fresh",
            "off",  # a variant of a row that happens to pass may meet a known deviation
            *arguments,
            env=ONE_THREAD,
        )
    session.run("pytest", "tests/third_party", "tests/backends/test_third_party.py", "-q", env=ONE_THREAD)
    session.run("python", "tests/third_party/table.py", *reports)


@nox.session
def others(session: nox.Session) -> None:
    """Array libraries that the core was not written for: dask, MLX, ndonnx; memory; the programs of spec/scale.md."""
    session.install("-e", ".", *OTHERS, *group("test"))
    session.run("pytest", "tests/others", "tests/scale/test_page.py", "-q", *session.posargs, env=ONE_THREAD)
    REPORTS.mkdir(exist_ok=True)
    session.run("mha-conformance", "run", "mlx", "-q", "--report", str(REPORTS / "mlx.json"), env=ONE_THREAD)


@nox.session
def onnx_comparison(session: nox.Session) -> None:
    """The bank's defects under the official ONNX cases and under this suite, by four tolerances."""
    session.install("-e", ".", *TORCH, *LIBRARIES, *group("oracle"))
    arguments = session.posargs or ["-j", "2"]
    session.run("python", "tests/third_party/onnx_comparison.py", *arguments, env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """The linter and the formatter; `nox -s lint -- fix` mends what can be mended."""
    session.install(*group("lint"))
    fix = "fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")


@nox.session
def types(session: nox.Session) -> None:
    """The type checker, strict."""
    session.install(".", *group("types"), *group("oracle"), *group("test"))
    session.run("mypy")


@nox.session
def vectors(session: nox.Session) -> None:
    """Regenerates the golden vectors and finds no difference; `nox -s vectors -- write` writes them anew."""
    session.install("-e", ".", *group("oracle"))
    check = [] if "write" in session.posargs else ["--check"]
    session.run("python", "-m", "conformance.vectors.generate", *check, env=ONE_THREAD)


@nox.session
def verify(session: nox.Session) -> None:
    """Proves every golden value anew in three ways, and counts the elements. Extra arguments go to the command."""
    session.install("-e", ".", *group("oracle"))
    session.run("mha-conformance", "vectors", "verify", *session.posargs, env=ONE_THREAD)


@nox.session
def soundness(session: nox.Session) -> None:
    """Correct implementations on new random cases: no rule may refuse one; `nox -s soundness -- --seed 7`.

    With `-- --quick` few cases of a fixed seed, in about a minute; with `-- --unobservable 1000` the defects that
    the bank says nothing can show.
    """
    frameworks = [requirement for requirements, _ in BACKENDS.values() for requirement in requirements]
    session.install("-e", ".", *frameworks, *group("oracle"))
    session.run("python", "-m", "conformance.soundness", *session.posargs, env=ONE_THREAD)


@nox.session
def diagnosis(session: nox.Session) -> None:
    """Counts how often the right mistake is named first; `nox -s diagnosis -- --each 1` takes the whole bank."""
    session.install("-e", ".")
    session.run("python", "tests/diagnosis/measure.py", *session.posargs, env=ONE_THREAD)


@nox.session
def defects(session: nox.Session) -> None:
    """Plants every defect of the bank and prints the kill matrix; `nox -s defects -- write` stores who is caught."""
    session.install("-e", ".")
    words = ["--write" if word == "write" else word for word in session.posargs]
    session.run("python", "-m", "conformance.defects", *words, env=ONE_THREAD)


@nox.session
def hardening(session: nox.Session) -> None:
    """Fuzzing at depth, fifty runs that are killed, twenty targets in a row: the figures of spec/hardening.md.

    The environment variable HARDENING is the depth: how many times as many examples as in `tests`.
    """
    session.install("-e", ".", *group("test"))
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
    session.install("-e", ".", *group("test"), "array-api-strict>=2.2", "mutmut==3.8.1")
    words = session.posargs or ["*[147]"]
    # Without its compiled modules each worker would take a second longer to start.
    session.run(
        "mutmut", "run", "--max-children", "2", *words, env={**ONE_THREAD, "PYTHONDONTWRITEBYTECODE": ""}
    )
    session.run("python", "tests/hardening/mutants.py")


LAYER = ["--op", "multi_head_attention"]
LONG = ["--shape", "1,1,1024,64", "--lengths", "1024,2048,4096,8192,16384", "--rounds", "5"]
BENCHES = {
    "attention-512": ["numpy", "torch-sdpa-flash", "naive-numpy", "products-numpy"],
    "attention-2048": [
        "numpy",
        "torch-sdpa-flash",
        "naive-numpy",
        "products-numpy",
        "--shape",
        "1,16,2048,64",
    ],
    "causal-2048": ["numpy", "torch-sdpa-flash", "--shape", "1,16,2048,64", "--causal"],
    "torch-512": ["torch", "torch-portable", "torch-sdpa-flash"],
    "torch-bfloat16": ["torch", "torch-portable", "torch-sdpa-flash", "--dtype", "bfloat16"],
    "decode": ["torch-portable", "torch", "torch-sdpa-flash", "--shape", "8,16,1,64", "--kv-len", "2048"],
    "jax-512": ["jax-jit", "jax-nn"],
    "layer-512": ["numpy", "torch", "torch-mha", "naive-numpy", *LAYER],
    "layer-tiny": ["numpy", "naive-numpy", *LAYER, "--shape", "1,2,2,2", "--no-memory"],
    "gradient-512": [
        "numpy",
        "naive-numpy",
        "torch",
        "torch-sdpa-flash",
        "--op",
        "scaled_dot_product_attention_vjp",
    ],
    "layer-gradient-512": ["numpy", "torch", "torch-mha", "--op", "multi_head_attention_vjp"],
    "long": ["numpy", "torch-sdpa-flash", *LONG],
    "onnxruntime-512": ["onnxruntime", "numpy", "torch-sdpa-flash"],
}
"""What is measured: the target, its rivals, then options."""


@nox.session
def bench(session: nox.Session) -> None:
    """Speed and memory beside other libraries, into reports/bench; `nox -s bench -- decode long` measures some.

    Ends with the table of targets and of what was reached, from tests/benching/targets.toml.
    Nothing here fails for being slow: the figures are for readers, and hold for the machine that they name.
    """
    if not TORCH:
        session.error("the rivals of the bench need Python 3.11, where a small CPU file of torch exists")
    unknown = set(session.posargs) - set(BENCHES)
    if unknown:
        session.error(f"no bench named {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    session.install(".", *TORCH, *LIBRARIES)
    folder = REPORTS / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    for name in session.posargs or BENCHES:
        words = BENCHES[name]
        first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        against = [word for rival in words[1:first] for word in ("--against", rival)]
        plot = ["--plot", f"{folder}/{name}.svg"] if "--lengths" in words else []
        output = ["--json", f"{folder}/{name}.json", *plot]
        session.run("mha-conformance", "bench", words[0], *against, *words[first:], *output)
    session.run("python", "tests/benching/targets.py", str(folder), *session.posargs)
