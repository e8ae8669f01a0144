"""Implementations that are not Python: programs in JavaScript and C, and a library of that world."""

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance.running.protocol import decode
from conformance.vectors.tensors import parse_tensors

BACKENDS = Path(__file__).parents[2] / "backends"
JAVASCRIPT = BACKENDS / "javascript"
NODE, NPM, CC = (shutil.which(program) for program in ("node", "npm", "cc"))
INSTALL_SECONDS = 60

needs_node = pytest.mark.skipif(NODE is None, reason="there is no node on this machine")
needs_cc = pytest.mark.skipif(CC is None, reason="there is no cc on this machine")


def compiled(folder: Path, *flags: str) -> Path:
    program = folder / "attention"
    source = BACKENDS / "c" / "attention.c"
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(["cc", *strict, *flags, "-o", str(program), str(source), "-lm"], check=True, timeout=60)
    return program


def verdicts(report: conformance.Report) -> dict[str, int]:
    return {verdict: count for verdict, count in report.summary.items() if count and verdict != "unsupported"}


@needs_node
@pytest.mark.covers("PROTO-1", "PROTO-2", "PROTO-3", "PROTO-4")
def test_javascript_conforms() -> None:
    report = conformance.run(command=["node", str(JAVASCRIPT / "attention.mjs")])
    assert report.status == "conformant", [row.message for row in report.results if row.failed]
    assert set(verdicts(report)) == {"pass"}
    assert report.summary["pass"] > 600
    assert report.profiles["encoder"] == report.profiles["decoder"] == "conformant"


@needs_cc
@pytest.mark.covers("PROTO-1", "PROTO-2", "PROTO-3", "PROTO-4")
def test_c_conforms(tmp_path: Path) -> None:
    report = conformance.run(command=[str(compiled(tmp_path, "-O2"))])
    assert report.status == "conformant", [row.message for row in report.results if row.failed]
    assert report.summary["pass"] > 300


@pytest.fixture(scope="module")
def onnxruntime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the programs with what npm installs beside them: 150 MB, which do not stay."""
    if (JAVASCRIPT / "node_modules").is_dir():
        yield JAVASCRIPT
        return
    if NPM is None:
        pytest.skip("there is no npm on this machine")
    folder = tmp_path_factory.mktemp("npm") / "javascript"
    shutil.copytree(JAVASCRIPT, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--silent"]
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_SECONDS, capture_output=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot install onnxruntime-web here: {error}")
    yield folder
    shutil.rmtree(folder)


ONNXRUNTIME_FAILS = {
    "attention/bias-lowest-float32",  # the lowest float is taken for -inf
    "nonfinite/future-key-nan",  # what hides a key is added to its logit, and so leaves a NaN
    "nonfinite/key-behind-minus-inf-bias",
    "nonfinite/masked-key-inf",
    "nonfinite/masked-key-minus-inf",
    "nonfinite/masked-key-nan",
}


@needs_node
def test_onnxruntime_in_webassembly_fails_where_it_is_known_to(onnxruntime: Path) -> None:
    report = conformance.run(command=["node", str(onnxruntime / "onnxruntime_attention.mjs")])
    assert report.target.name == "onnxruntime-web"
    failed = {row.case for row in report.results if row.failed}
    assert failed <= ONNXRUNTIME_FAILS, [row.message for row in report.results if row.failed]
    assert "nonfinite/masked-key-nan" in failed
    assert set(verdicts(report)) == {"pass", "fail"}, "it answers, right or wrong"
    assert report.summary["pass"] > 100


# What programs refuse


START = {"cmd": "start", "protocol": 1}
TWO = {"dtype": "float32", "shape": [1, 2, 1], "data": base64.b64encode(b"\0\0\x80\x3f" * 2).decode()}
RUN = {
    "cmd": "run",
    "id": "x/y",
    "operation": "scaled_dot_product_attention",
    "inputs": {"query": TWO, "key": TWO, "value": TWO},
    "options": {},
}


def replies(command: list[str], *messages: dict[str, Any]) -> list[Any]:
    lines = "".join(f"{json.dumps(message)}\n" for message in messages)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=30, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(params=[pytest.param("node", marks=needs_node), pytest.param("cc", marks=needs_cc)])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "node":
        return ["node", str(JAVASCRIPT / "attention.mjs")]
    return [str(compiled(tmp_path, "-fsanitize=undefined", "-fno-sanitize-recover"))]


@pytest.mark.covers("PROTO-1", "PROTO-7")
def test_a_reply_for_each_message_and_an_end_without_stop(program: list[str]) -> None:
    started, first, second = replies(program, START, RUN, RUN)
    assert decode(json.dumps(started).encode(), "started")["accuracy"] == "fused"
    assert first == second == {"id": "x/y", "outputs": {"output": TWO}}


@pytest.mark.covers("PROTO-5")
def test_what_programs_do_not_know_is_refused(program: list[str]) -> None:
    (answer,) = replies(program, {"cmd": "start", "protocol": 2})
    assert decode(json.dumps(answer).encode(), "refused")["error"]
    dropout = {**RUN, "options": {"dropout": 0.5}}
    half = {**RUN, "inputs": {**RUN["inputs"], "key": {**TWO, "dtype": "int8"}}}  # type: ignore[dict-item]
    _, first, second = replies(program, START, dropout, half)
    assert "dropout" in first["unsupported"]
    assert "dtype" in second["error"]


# The vectors in other languages


@needs_node
def test_a_reader_of_safetensors_in_a_few_lines(tmp_path: Path) -> None:
    from conformance.cli import main

    assert main(["vectors", "export", str(tmp_path / "vectors")]) == 0
    program = tmp_path / "hashes.mjs"
    program.write_text(
        f"import {{ readSafetensors }} from {json.dumps((JAVASCRIPT / 'safetensors.mjs').as_uri())};\n"
        "import { createHash } from 'node:crypto';\n"
        "for (const [name, { dtype, shape, data }] of Object.entries(readSafetensors(process.argv[2])))\n"
        "  console.log(JSON.stringify([name, dtype, shape, createHash('sha256').update(data).digest('hex')]));\n"
    )
    lines = [line for line in (JAVASCRIPT / "safetensors.mjs").read_text().splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("//", "import"))]) <= 14
    tags = {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "bool": "BOOL",
        "int64": "I64",
        "int32": "I32",
    }
    for name in ("mask.safetensors", "causal.safetensors"):
        file = tmp_path / "vectors" / name
        done = subprocess.run(
            ["node", str(program), str(file)], capture_output=True, text=True, timeout=60, check=True
        )
        got = {line[0]: line[1:] for line in map(json.loads, done.stdout.splitlines())}
        assert got == {
            key: [tags[str(x.dtype)], list(x.shape), hashlib.sha256(x.tobytes()).hexdigest()]
            for key, x in parse_tensors(file.read_bytes(), file.suffix).items()
        }
