"""Finds what a string names: a backend, an installed module, a file, and an attribute in it."""

import importlib
import importlib.util
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from conformance.errors import UsageError
from conformance.resources import checkout_project, current_folder
from conformance.running.suggestions import nearest
from conformance.running.text_limits import first_line

GROUP = "mha_conformance.implementations"
PACKAGES = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "array_api_strict": "array-api-strict",
    "onnx": "onnx onnxruntime",
    "onnxruntime": "onnx onnxruntime",
    "keras": "keras torch",
}
"""Library -> what pip installs for the backends that need it."""
ADAPTED = {
    "flash_attn": "flash-attn",
    "xformers": "xformers",
    "triton": "triton",
    "transformers": "transformers",
}
"""Library of an adapter that `init --adapter` writes -> what pip installs."""


def installed(module: str) -> bool:
    """Whether a module of the top level is there, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # it is kept out, or was put into sys.modules by hand
        return False


def implementations() -> dict[str, str]:
    """Names of the built-in backends and of installed plug-ins, with what each name stands for."""
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    project = checkout_project()
    if project is not None:  # a checkout that is not installed has no entry points
        with project.open("rb") as file:
            found = {**tomllib.load(file)["project"]["entry-points"][GROUP], **found}
    return dict(sorted(found.items()))


def locate(source: str) -> tuple[Any, str | None]:
    """The object that a string names, and the name of its backend if it is one.

    Raises:
        UsageError: it cannot be found or imported.
    """
    if not source.strip(" :"):
        raise UsageError(f"TARGET {source!r} names nothing; see `mha-conformance list backends`")
    backends = implementations()
    location, name = backends.get(source, source), source if source in backends else None
    module_name, attribute = _split(location)
    module = _import_file(module_name) if module_name.endswith(".py") else _import(module_name, source, name)
    found: Any = module
    for part in attribute.split(".") if attribute else ():
        found = _attribute(found, part, source)
    return found, name


def _split(location: str) -> tuple[str, str]:
    """Where the module is, and the attribute in it; a drive letter is no attribute."""
    if "::" in location:
        single = location.replace("::", ":")
        raise UsageError(f"{location!r} has two colons, as pytest writes it; did you mean {single}?")
    module, colon, attribute = location.rpartition(":")
    if not colon or location.endswith(".py"):
        return location, ""
    if not attribute:
        raise UsageError(
            f"{location!r} names no attribute after the colon; give {module}:NAME, or {module} alone"
        )
    if not module:
        raise UsageError(
            f"{location!r} names nothing before the colon; "
            "give package.module:attribute or path/to/file.py:attribute"
        )
    return module, attribute


def reachable(folder: Path) -> None:
    """Lets a target import its neighbours, which do not hide modules of the same name from anyone else."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import(name: str, source: str, backend: str | None) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        what = "a folder" if Path(name).is_dir() else "not the name of a module"
        raise UsageError(
            f"{name!r} is {what}; give a backend, package.module:attribute or path/to/file.py:attribute"
            f"{nearest(source, implementations())}"
        )
    reachable(current_folder())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = (
                _colon(name) or nearest(source, implementations()) or "; see `mha-conformance list backends`"
            )
            raise UsageError(f"no backend, module or file named {name!r}{hint}") from error
        raise UsageError(f"cannot import {name}: {_missing(error, backend)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot import {name}: {first_line(error)}") from error


def _colon(name: str) -> str:
    """A hint where the last part of a dotted name is no module but stands in one."""
    module, _, attribute = name.rpartition(".")
    return f"; did you mean {module}:{attribute}?" if hasattr(sys.modules.get(module), attribute) else ""


def _missing(error: ModuleNotFoundError, backend: str | None) -> str:
    """What a target imports in vain, and how that is installed."""
    library = (error.name or "").partition(".")[0]
    missing = f"no module named {error.name!r}"
    packages = PACKAGES.get(library) if backend is not None else ADAPTED.get(library)
    if packages is None:
        return f"{missing}; install it for {sys.executable}, which runs this, or put it next to the file"
    return f"{missing}; install it with: pip install {packages}"


def _import_file(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        if file.exists():
            raise UsageError(f"{path!r} is not a regular file; give a Python file")
        siblings = [str(p) for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UsageError(f"no file {path!r}{nearest(path, siblings)}")
    name = file.stem if _free(file) else f"{file.stem}_target"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot import {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    reachable(current_folder())
    reachable(file.resolve().parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"cannot import {path}: {_missing(error, None)}{_line(error, file)}") from error
    except ImportError as error:
        relative = "relative import" in str(error)
        remedy = "; a file has no package: name it as package.module:attribute" if relative else ""
        raise UsageError(f"cannot import {path}: {first_line(error)}{_line(error, file)}{remedy}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot import {path}: {first_line(error)}{_line(error, file)}") from error
    return module


def _line(error: BaseException, file: Path) -> str:
    """The last line of a file that an exception came through, in words; empty where it says so itself."""
    passed = [each for each in extract_tb(error.__traceback__) if Path(each.filename) == file.resolve()]
    return f" (line {passed[-1].lineno})" if passed else ""


def _free(file: Path) -> bool:
    """Whether a file can be imported by its own name: one called struct.py must not replace the library's."""
    if file.stem in sys.modules or file.stem in sys.stdlib_module_names or not file.stem.isidentifier():
        return False
    try:
        spec = importlib.util.find_spec(file.stem)
    except (ImportError, ValueError):
        return False
    return spec is None or spec.origin is None or Path(spec.origin).resolve() == file.resolve()


def _attribute(holder: Any, name: str, source: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError as error:
        names = [n for n in dir(holder) if not n.startswith("_")]
        raise UsageError(f"cannot find {name!r} in {source}{nearest(name, names)}") from error
