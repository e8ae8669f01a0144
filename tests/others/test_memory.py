"""Arrays of dask that are larger, logits counted, than the memory the process may take."""

import resource
from pathlib import Path

import pytest
from scale_programs import run


@pytest.mark.parametrize(("spread", "mebibytes"), [("batch", 48), ("rows", 64)])
def test_more_than_fits_into_memory(spread, mebibytes):
    pytest.importorskip("dask", reason="dask is not installed: see nox -s others")
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    program = Path(__file__).parent / "memory.py"
    printed = run("-W", "ignore", str(program), spread, str(mebibytes), OMP_NUM_THREADS="1")
    assert printed == "in one piece it does not fit\n"
