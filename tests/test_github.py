"""Forms and workflows: GitHub can read them, and every session that anything names exists."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="of the dependency group test")

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = [
    ROOT / ".ci" / "run",
    *WORKFLOWS,
    *sorted((ROOT / ".github").glob("*.md")),
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "spec").glob("*.md")),
]
pytestmark = pytest.mark.skipif(not FORMS, reason="an sdist comes without .github")


@pytest.mark.parametrize("path", [p for p in FORMS if p.name != "config.yml"], ids=lambda path: path.name)
def test_a_form_has_what_github_wants(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form.keys() - {"labels"} == {"name", "description", "body"}
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) >= 2
    for field in form["body"]:
        assert field["type"] in ("input", "textarea")
        assert field["attributes"].keys() <= {"label", "description", "render"}
        assert field["attributes"]["label"]
    assert any(field.get("validations", {}).get("required") for field in form["body"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_read_only_and_ends(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 120 for job in workflow["jobs"].values())


def sessions() -> set[str]:
    """The sessions of the noxfile."""
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "nox.session" for decorator in node.decorator_list)
    }


def named(text: str) -> set[str]:
    """The sessions that a text calls: `nox -s a "b(backend='x')" -- arguments`."""
    joined = re.sub(r"\$\{\{.*?\}\}|\\\n|\n {10,}", " ", text)
    found: set[str] = set()
    for call in re.findall(r"nox(?: --[a-z-]+)* -s ([^`\n|>]*)", joined):
        words = call.partition(" -- ")[0].partition("||")[0].partition(" #")[0]
        found |= {word.strip("\"'").partition("(")[0] for word in words.split() if not word.startswith("$")}
    return {word.rstrip(".,;:)") for word in found} - {"", "(some"}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_session_that_is_named_exists(path: Path) -> None:
    assert named(path.read_text("utf-8")) <= sessions()


def test_the_weekly_sessions_exist() -> None:
    weekly = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text("utf-8"))
    assert set(weekly["jobs"]["session"]["strategy"]["matrix"]["session"]) <= sessions()


def test_names_are_found() -> None:
    text = "say `nox -s nothing` or\npython -m nox -s \"tests(a='b')\" wheel || x\n$nox -s defects \\\n  lint > y"
    assert named(text) == {"nothing", "tests", "wheel", "defects", "lint"}
