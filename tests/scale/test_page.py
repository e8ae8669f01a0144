"""The programs of spec/scale.md run as they stand."""

import concurrent.futures
import re
import socket
from pathlib import Path

import pytest
from array_libraries import library
from scale_programs import EIGHT, run

import mha_core

pytestmark = pytest.mark.turns(3, whole=True)

PAGE = Path(mha_core.__file__).parents[1] / "spec" / "scale.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
OVER_PROCESSES = "init_process_group"


def test_every_way_to_spread_is_shown():
    shown = "\n".join(PROGRAMS)
    assert all(word in shown for word in ("NamedSharding", "shard_map", OVER_PROCESSES, "Thread", "dask"))


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(number, tmp_path):
    program = PROGRAMS[number]
    for module, name in (("jax", "jax"), ("torch", "torch")):
        if f"import {module}" in program:
            library(name)
    if "import dask" in program:
        pytest.importorskip("dask", reason="dask is not installed: see nox -s others")
    path = tmp_path / "program.py"
    path.write_text(program, encoding="utf-8")
    if OVER_PROCESSES not in program:
        run("-W", "error", str(path), **EIGHT)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with concurrent.futures.ThreadPoolExecutor(2) as both:  # what torchrun does
        list(both.map(lambda rank: run(str(path), **place, RANK=rank), ["0", "1"]))
