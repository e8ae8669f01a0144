"""What README and its guides show is what happens: their blocks are run, and their output compared."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import picture
import pytest
from shown import assert_shows

from conformance.defects.bank import DEFECTS
from conformance.telling.report import read_report

PAGE = Path(__file__).parent.parent / "README.md"
README = PAGE.read_text("utf-8")
SPEC = PAGE.parent / "spec"
TARGETS, REPORTS = ((SPEC / name).read_text("utf-8") for name in ("targets.md", "reports.md"))
LONGEST = 130
"""Lines of README."""
DIGITS = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")
"""Numbers, whose last digits are those of a processor."""
ROOT = "np.sqrt(query.shape[-1], dtype=np.float32)"


def blocks(language, page=README):
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def shown(command):
    """The output lines that README shows after a command, one list for each time it is shown."""
    sessions = [block.splitlines() for block in blocks("console")]
    return [lines[1:] for lines in sessions if lines[0] == f"$ {command}" and len(lines) > 1]


def run(folder, *words):
    command = [sys.executable, "-m", "conformance", *words]
    wide = {**os.environ, "COLUMNS": "120"}  # so that no sentence of a table is broken
    return subprocess.run(command, cwd=folder, env=wide, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(tmp_path):
    (function,) = (block for block in blocks("python") if "def attention(query" in block)
    assert len([line for line in function.splitlines() if line.strip() and "import" not in line]) <= 10
    (tmp_path / "attention.py").write_text(function, "utf-8")
    return tmp_path


def test_the_function_of_the_first_quickstart_conforms(folder):
    done = run(folder, "run", "attention.py:attention")
    assert done.returncode == 0, done.stderr
    assert_shows(PAGE, shown("mha-conformance run attention.py:attention")[0], done.stdout)


def test_without_its_square_root_it_fails_and_the_requirement_is_named(folder):
    path = folder / "attention.py"
    assert ROOT in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(ROOT, "query.shape[-1]"), "utf-8")
    done = run(folder, "run", "attention.py:attention", "--fresh", "off", "--report", "mine.json")
    assert done.returncode == 1, done.stderr
    assert_shows(PAGE, shown("mha-conformance run attention.py:attention")[1], done.stderr + done.stdout)
    drawn = picture.picture(done.stderr + done.stdout, read_report(folder / "mine.json"))
    if "WRITE_FIGURES" in os.environ:
        picture.PICTURE.write_text(drawn, "utf-8")
    kept = picture.PICTURE.read_text("utf-8")
    assert DIGITS.sub("#", drawn) == DIGITS.sub("#", kept), (
        "the picture is not of this run: `nox -s readme` draws it"
    )


@pytest.mark.parametrize("words", [("show", "attention/hand-sized"), ("explain", "ATT-3"), ("run", "--help")])
def test_the_commands_that_readme_names_run(folder, words):
    assert f"mha-conformance {' '.join(words)}" in README
    assert run(folder, *words).returncode == 0


def test_the_reference_prints_what_readme_shows(tmp_path):
    (program,) = (block for block in blocks("python") if "multi_head_attention" in block)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks("text")[0]


def test_the_reference_refuses_as_the_guide_shows():
    import mha_core

    x = np.ones((2, 5, 16))
    with pytest.raises(ValueError, match=r"^key has d_k=8 but query has d_k=16 \(SHAPE-5\)$") as error:
        mha_core.scaled_dot_product_attention(x, x[..., :8], x)
    assert f"`{error.value}`" in (SPEC / "core.md").read_text("utf-8")


def test_the_attributes_that_readme_names_are_read(folder):
    (attributes,) = (block for block in blocks("python", TARGETS) if "layout =" in block)
    attributes = (
        attributes.replace('"torch"', '"numpy"').replace('"blhd"', '"bhld"').replace('"is_causal", ', "")
    )
    with (folder / "attention.py").open("a", encoding="utf-8") as file:
        file.write("\n" + attributes + "scaled_dot_product_attention = attention\n")
    done = run(folder, "run", "attention.py", "--dtype", "float32", "-k", "heads")
    assert done.returncode == 0, done.stderr
    assert "my kernel 2.1" in done.stdout


def test_the_torch_module_fails_where_readme_says(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    (module,) = (block for block in blocks("python", TARGETS) if "torch.nn.Module" in block)
    (tmp_path / "torch_attention.py").write_text(module, "utf-8")
    done = run(
        tmp_path, "run", "torch_attention.py:Attention", "-k", "mask or nonfinite", "--dtype", "float32"
    )
    assert done.returncode == 1, done.stderr
    assert "MASK-4" in done.stdout + done.stderr


def test_the_files_that_readme_shares_are_written(folder):
    (line,) = (
        words[0]
        for words in map(str.splitlines, blocks("console", REPORTS))
        if "--html mine.html" in words[0]
    )
    done = run(folder, *line.removeprefix("$ mha-conformance ").split(), "-k", "heads")
    assert done.returncode == 0, done.stderr
    for name in ("mine.json", "mine.html", "mine.xml", "mine-badge.svg"):
        assert (folder / name).stat().st_size > 0, name
    compared = run(folder, "compare", "mine.json", "mine.json")
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize("name", ["README.md", "spec/targets.md", "spec/reports.md", "spec/evidence.md"])
def test_every_link_leads_somewhere(name):
    page = PAGE.parent / name
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert targets
    for target in targets:
        assert (page.parent / target).exists(), target


def test_readme_is_short():
    assert len(README.splitlines()) <= LONGEST


def test_the_adapter_of_the_guide_passes(tmp_path):
    (adapter,) = re.findall(r"<!-- adapter.py -->\n```python\n(.*?)^```", TARGETS, re.DOTALL | re.MULTILINE)
    (tmp_path / "adapter.py").write_text(adapter, "utf-8")
    words = ("adapter.py:attention", "-k", "attention or heads or causal", "--fresh", "off")
    done = run(tmp_path, "run", *words)
    assert done.returncode == 0, done.stdout
    assert " 0 fail" in done.stdout
    assert "q_offset has to be" in run(tmp_path, "run", *words, "-v").stderr


def test_the_mistakes_are_as_many_as_it_says() -> None:
    said = re.search(r"more than ([\d,]+) known mistakes", README)
    assert said is not None
    assert 0 <= sum(not defect.equivalent for defect in DEFECTS) - int(said[1].replace(",", "")) < 200
