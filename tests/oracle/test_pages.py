"""What README and the guide show of assert_conforms is what happens."""

import re
from pathlib import Path

import pytest

import conformance

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
GUIDE = (ROOT / "spec" / "assert-conforms.md").read_text("utf-8")

torch = pytest.importorskip("torch")
attend = torch.nn.functional.scaled_dot_product_attention


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def rounded(line):
    """Numbers with the digits that every processor agrees on."""
    return re.sub(r"\d\.\d{5,}", lambda number: number[0][:6], line)


def wrong(q, k, v, **options):
    return attend(q, k, v, scale=0.15, **options)


def test_the_test_in_readme_tells_right_from_wrong():
    (block,) = (block for block in blocks(README, "python") if "assert_conforms" in block)
    names = {"torch": torch, "conformance": conformance, "my_attention": attend}
    exec(block, names)
    names["test_attention"]()
    names["my_attention"] = wrong
    with pytest.raises(AssertionError, match="times what is allowed"):
        names["test_attention"]()


def test_the_guide_runs_in_order():
    names = {"my_attention": attend, "reference": attend}
    told = [line for block in blocks(GUIDE, "text") for line in block.splitlines()]
    failed = 0
    for block in blocks(GUIDE, "python"):
        if "the scale is forgotten" in block:
            with pytest.raises(AssertionError) as error:
                exec(block, names)
            lines = str(error.value).splitlines()
            assert [rounded(line) for line in lines[: len(told)]] == [rounded(line) for line in told]
            assert any("scale" in line for line in lines if line.startswith("  likely"))
            failed += 1
        else:
            exec(block, names)
        if "def test_my_attention" in block:
            names["test_my_attention"]()
    assert failed == 1
    names["my_attention"] = wrong
    with pytest.raises(AssertionError, match="times what is allowed"):
        names["test_my_attention"]()
