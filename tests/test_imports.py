"""Who may import whom: one table, held to the source of the three packages."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mha_core", "backends", "conformance")
FRAMEWORKS = {
    "array_api_compat", "array_api_strict", "cupy", "dask", "equinox", "flax", "haiku", "jax", "jaxlib", "keras",
    "mlx", "onnx", "onnxruntime", "tensorflow", "tinygrad", "torch", "transformers",
}  # fmt: skip
STANDARD = frozenset(sys.stdlib_module_names)
FEW = frozenset({"collections", "functools", "importlib", "typing"})
MORE = FEW | {"dataclasses", "math", "os", "sys", "types", "warnings"}


def declared() -> frozenset[str]:
    """What conformance depends on, and its oracle, as they are imported."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = [*project["project"]["dependencies"], *project["dependency-groups"]["oracle"], "pytest", "flint"]
    names = {re.match(r"[a-z0-9-]+", line)[0].replace("-", "_") for line in lines}  # type: ignore[index]
    return frozenset(names - {"array_api_compat", "python_flint"})


@dataclass(frozen=True)
class Contract:
    """What the files of a pattern may import."""

    files: str
    may: frozenset[str] | None = None  # packages, their own among them; None: another contract says so
    all_of_them: bool = False  # and each file imports all of these
    standard: frozenset[str] = STANDARD
    never: frozenset[str] = frozenset()  # modules, with all that is below them

    def breaches(self, imports: set[str]) -> set[str]:
        """What of the imports of a file is against it, or lacks."""
        tops = {name.partition(".")[0] for name in imports}
        found = {name for name in imports for no in self.never if f"{name}.".startswith(f"{no}.")}
        if self.may is not None:
            found |= tops - self.may - self.standard
            found |= self.may - tops if self.all_of_them else set()
        return found


def backend(name: str, *packages: str, standard: frozenset[str] = FEW) -> Contract:
    """The contract of an adapter: just these packages, and little of the standard library."""
    return Contract(f"backends/{name}.py", frozenset(packages), all_of_them=True, standard=standard)


def room(name: str, *later: str) -> Contract:
    """The contract of a room of conformance: none of those that come later in the line."""
    return Contract(f"conformance/{name}/**/*.py", never=frozenset(f"conformance.{other}" for other in later))


CONTRACTS = (
    Contract("mha_core/**/*.py", frozenset({"mha_core", "array_api_compat"})),
    Contract("conformance/**/*.py", declared() | {"conformance"}),
    room("vectors", "judging", "running", "telling", "api", "cli"),
    room("judging", "running", "telling", "api", "cli"),
    room("running", "telling", "api", "cli"),
    room("telling", "api", "cli"),
    room("api", "cli"),
    *(room(next_to, "api", "cli") for next_to in ("diagnosis", "defects", "exploring", "oracle", "verdicts")),
    backend("__init__"),
    backend("numpy_backend", "mha_core", "numpy"),
    backend("strict_backend", "mha_core", "array_api_strict"),
    backend("torch_backend", "mha_core", "torch"),
    backend("torch_portable_backend", "mha_core", "torch"),
    backend("jax_backend", "mha_core", "jax"),
    backend("jax_jit_backend", "mha_core", "jax"),
    backend("dask_backend", "mha_core", "dask"),
    backend("mlx_backend", "mha_core", "mlx", "numpy", "ml_dtypes"),
    backend("torch_sdpa_backend", "torch", "backends", standard=MORE),
    backend("torch_mha_backend", "torch", "backends", standard=MORE),
    backend("jax_nn_backend", "jax", "numpy", standard=MORE),
    backend("onnx_attention", "onnx", "numpy", standard=MORE),
    backend("onnx_cases", "onnx", "numpy", standard=MORE),
    backend("onnx_reference_backend", "onnx", "backends", standard=MORE),
    backend("ort_backend", "onnxruntime", "numpy", "backends", standard=MORE),
    backend("ort_gqa_backend", "onnxruntime", "numpy", "backends", standard=MORE),
    backend("any_onnx_backend", "backends", standard=MORE),
    backend("keras_backend", "keras", standard=MORE),
    backend("torch_shapes", "torch", standard=MORE),
    backend("serving_shapes", "torch", standard=MORE),
    backend("flash_attn_backend", "flash_attn", "backends", standard=MORE),
    backend("flashinfer_backend", "flashinfer", "torch", "backends", standard=MORE),
    backend("vllm_backend", "vllm", "torch", "backends", standard=MORE),
    backend("xformers_backend", "xformers", "backends", standard=MORE),
    backend("flex_backend", "torch", "backends", standard=MORE),
    backend("transformers_backend", "transformers", "torch", "backends", standard=MORE),
    backend("transformers_flex_backend", "transformers", "torch", "backends", standard=MORE),
    backend("flax_backend", "flax", "jax", standard=MORE),
    backend("x_transformers_backend", "x_transformers", "torch", "backends", standard=MORE),
    backend("openvino_backend", "openvino", "numpy", standard=MORE),
    backend("ggml_backend", "pywhispercpp", "numpy", standard=MORE | {"ctypes", "pathlib"}),
)


def imported(text: str) -> set[str]:
    """The modules that a source imports, anywhere in it, with what it takes from each."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module if node.module and not node.level else "a relative import"
                yield from (f"{node.module}.{alias.name}" for alias in node.names if not node.level)

    return set(names())


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.files)
def test_it_is_kept(contract: Contract) -> None:
    paths = sorted(ROOT.glob(contract.files))
    assert paths, "a contract of nobody"
    broken = {str(path): contract.breaches(imported(path.read_text("utf-8"))) for path in paths}
    assert {path: found for path, found in broken.items() if found} == {}


def test_every_file_has_one() -> None:
    governed = {
        path for contract in CONTRACTS if contract.may is not None for path in ROOT.glob(contract.files)
    }
    assert {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")} == governed


def test_the_suite_admits_no_framework_and_no_target() -> None:
    assert not declared() & (FRAMEWORKS | {"mha_core", "backends"})


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("def f():\n    from torch.nn import functional", "mha_core/**/*.py"),
        ("import numpy", "mha_core/**/*.py"),
        ("from . import checks", "mha_core/**/*.py"),
        ("import mha_core.tiles", "conformance/**/*.py"),
        ("def f():\n    import jax", "conformance/**/*.py"),
        ("from conformance import telling", "conformance/vectors/**/*.py"),
        ("import conformance.running.target", "conformance/judging/**/*.py"),
        ("import mha_core, torch, conformance", "backends/torch_backend.py"),
        ("import mha_core, torch, os", "backends/torch_backend.py"),
        ("import torch", "backends/torch_backend.py"),
    ],
)
def test_it_fires(text: str, files: str) -> None:
    (contract,) = (contract for contract in CONTRACTS if contract.files == files)
    assert contract.breaches(imported(text))
