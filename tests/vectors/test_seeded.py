"""Seeded operands: the same numbers in every language, refused where they are of no form, written out on request."""

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conformance.cli import main
from conformance.dtypes import cast
from conformance.judging.judge import judge
from conformance.vectors.load import INDEX, load_vectors
from conformance.vectors.seeded import Box, Seed, seed_json, seed_of
from conformance.vectors.words import mix

BACKENDS = Path(__file__).parents[2] / "backends"
SEEDED = [case for case in load_vectors().cases if case.seeded]
SEEDS = (
    Seed((2, 3, 5), 0, boxes=(Box((0, 1, 2), (2, 3, 4), math.nan), Box((1, 1, 3), (2, 2, 5), -2.5))),
    Seed((4, 7), 2**32 - 1, bits=53, power=-3),
    Seed((4, 7), 3, bits=24, power=9),
    Seed((3, 4), 15, share=100, boxes=(Box((0, 0), (3, 1), True),)),
)


def by_the_page(seed: Seed) -> list[float]:
    """The elements before the boxes, as spec/vectors.md says them, in Python's integers."""
    found = []
    for i in range(math.prod(seed.shape)):
        word = mix((mix(seed.seed) + i) % 2**64)
        if seed.share is not None:
            found.append(word >> 56 < seed.share)
        else:
            found.append(((word >> (63 - seed.bits)) - 2**seed.bits) * 2.0 ** (seed.power - seed.bits))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_those_of_the_page(seed: Seed) -> None:
    assert replace(seed, boxes=()).array().ravel().tolist() == by_the_page(seed)
    again = seed_of(json.loads(json.dumps(seed_json(seed))))
    assert np.array_equal(again.array(), seed.array(), equal_nan=seed.share is None)


def test_the_words_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "spec" / "vectors.md").read_text("utf-8")
    for i in range(3):
        assert f"`{mix((mix(0) + i) % 2**64):016x}`" in page


def test_boxes_lie_over_the_numbers() -> None:
    array = SEEDS[0].array()
    assert math.isnan(array[0, 1, 2])
    assert array[1, 1, 3] == -2.5
    assert np.isfinite(array[0, 0]).all()
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0, 0] = 1


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node on this machine")
def test_javascript_makes_the_same(tmp_path: Path) -> None:
    module = (BACKENDS / "javascript" / "seeded.mjs").as_uri()
    program = tmp_path / "made.mjs"
    program.write_text(
        f"import {{ seededOperand }} from {json.dumps(module)};\n"
        "for (const seed of JSON.parse(process.argv[2]))\n"
        "  console.log(JSON.stringify(seededOperand(seed).data.map((x) => Number.isNaN(x) ? 'nan' : x)));\n"
    )
    asked = json.dumps([seed_json(seed) for seed in SEEDS])
    done = subprocess.run(
        ["node", str(program), asked], capture_output=True, text=True, timeout=60, check=True
    )
    for seed, line in zip(SEEDS, done.stdout.splitlines(), strict=True):
        got = [math.nan if x == "nan" else x for x in json.loads(line)]
        assert np.array_equal(np.array(got, float), seed.array().ravel().astype(float), equal_nan=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no cc on this machine")
def test_c_makes_the_same(tmp_path: Path) -> None:
    program = tmp_path / "made.c"
    program.write_text(
        f'#include <stdio.h>\n#include "{BACKENDS / "c" / "seeded.h"}"\n'
        "int main(void) { for (int i = 0; i < 28; i++) printf("
        '"%a %a %d\\n", seeded_number(4294967295u, i, 53, -3), seeded_number(3, i, 24, 9), '
        "seeded_shown(15, i, 100)); return 0; }\n"
    )
    made = tmp_path / "made"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(["cc", *flags, "-o", str(made), str(program), "-lm"], check=True, timeout=60)
    done = subprocess.run([str(made)], capture_output=True, text=True, timeout=60, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [float.fromhex(line[0]) for line in lines] == by_the_page(SEEDS[1])
    assert [float.fromhex(line[1]) for line in lines] == by_the_page(SEEDS[2])
    assert [line[2] == "1" for line in lines[:12]] == by_the_page(SEEDS[3])


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"shape": [4096, 4097], "seed": 1, "bits": 8, "power": 1}, "has more than 16777216 elements"),
        (
            {
                "shape": [3],
                "seed": 1,
                "bits": 8,
                "power": 1,
                "boxes": [{"first": [2], "end": [4], "value": 1}],
            },
            "does not fit an operand of shape",
        ),
        (
            {"shape": [3], "seed": 1, "share": 9, "boxes": [{"first": [0], "end": [1], "value": 1}]},
            "does not fit an operand of shape",
        ),
    ],
)
def test_what_is_refused(entry: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        seed_of(entry)


def test_every_seeded_operand_is_exact_in_its_dtypes() -> None:
    for case in SEEDED[::8]:
        for name in case.seeded:
            array = case.inputs[name]
            for dtype in case.dtypes if array.dtype.kind == "f" else ():
                held = cast(array, dtype).astype(np.float64)
                assert np.array_equal(held, array.astype(np.float64), equal_nan=True), (case.id, name, dtype)
            assert array.shape == case.shapes[name]


def test_written_out_they_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "export", "--operands", str(tmp_path)]) == 0
    shipped, written = load_vectors(), load_vectors(tmp_path)
    assert f"sha256 of index.json: {written.sha256}" in capsys.readouterr().out
    assert written.sha256 != shipped.sha256
    assert "seeded" not in (tmp_path / INDEX).read_text("utf-8")
    for one, other in zip(shipped.cases, written.cases, strict=True):
        assert one.id == other.id
        assert list(one.inputs) == list(other.inputs)
    for case in SEEDED[::16]:
        other = next(x for x in written.cases if x.id == case.id)
        for name, array in case.inputs.items():
            assert np.array_equal(array, other.inputs[name], equal_nan=array.dtype.kind == "f")


def test_what_is_not_finite_elsewhere_fails() -> None:
    case = next(case for case in SEEDED if case.id == "kernels/tiles-256-causal")
    golden = case.expected["output"]
    assert golden.finite
    assert golden.rows is not None
    assert 5 not in golden.rows
    answer = np.zeros(golden.shape, np.float32)
    answer[..., golden.rows, :] = golden.hi
    assert judge(case, "float32", "eager", {"output": answer}).verdict == "pass"
    answer[0, 1, 5, 2] = np.nan
    judgement = judge(case, "float32", "eager", {"output": answer})
    assert judgement.verdict == "fail"
    assert "output[0, 1, 5, 2] is nan, wanted a finite number (NUM-6)" in judgement.message
