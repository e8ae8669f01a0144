"""`mha-conformance bench`."""

import json
from pathlib import Path
from typing import Any

import click

from conformance.cli.exit_codes import CONFORMANT, FAILED, examples
from conformance.errors import UsageError
from conformance.names import DENSE, DTYPES, SDPA
from conformance.running.suggestions import known
from conformance.telling.atomic_file import OutFile, check_apart, files_of
from conformance.telling.terminal import console, plain

SIZE_AXES = 4
LARGEST = 2**31 - 1


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """Positive numbers between commas.

    Raises:
        UsageError: they are something else.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < n <= LARGEST for n in numbers):
        raise UsageError(f"{name} {text!r} but needs numbers of at least 1 between commas, such as 512,1024")
    return numbers


@click.command(
    epilog=examples(
        "bench numpy --against torch-sdpa-flash --against naive-numpy",
        "bench numpy --against torch --op scaled_dot_product_attention_vjp --mask padding --threads 2",
        "bench my.py:attention --against torch --shape 1,8,512,64 --lengths 512,1024,2048 --plot time.svg",
    )
)
@click.argument("target")
@click.option(
    "--against",
    multiple=True,
    metavar="TARGET",
    help="Compare with this target (repeatable); naive-numpy and products-numpy too.",
)
@click.option(
    "--op", "operation", default=SDPA, show_default=True, metavar="NAME", help="Operation to measure."
)
@click.option("--dtype", default="float32", show_default=True, metavar="D")
@click.option(
    "--shape",
    default="4,8,512,64",
    show_default=True,
    metavar="B,H,L,D",
    help="Batch, heads, queries, head width.",
)
@click.option(
    "--kv-len",
    type=click.IntRange(1, LARGEST),
    metavar="N",
    help="Number of keys, if it differs from the number of queries.",
)
@click.option(
    "--kv-heads",
    type=click.IntRange(1, LARGEST),
    metavar="N",
    help="Number of key heads, if it is smaller than the number of heads.",
)
@click.option(
    "--causal", "is_causal", is_flag=True, help="Set is_causal; the queries are the last positions."
)
@click.option(
    "--mask", metavar="KIND", help="Hide keys, or add to logits: padding, random, bias, lengths or window."
)
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Threads of every library; the default is one."
)
@click.option("--lengths", metavar="N,N,...", help="Measure several query lengths.")
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True, metavar="N")
@click.option(
    "--no-memory", is_flag=True, help="Do not measure memory, which needs a process for each target."
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    metavar="OUT.json",
    help="Write every sample as JSON.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="OUT.svg",
    help="Plot time and memory over --lengths as SVG.",
)
def bench(
    target: str,
    against: tuple[str, ...],
    operation: str,
    dtype: str,
    shape: str,
    kv_len: int | None,
    kv_heads: int | None,
    is_causal: bool,
    mask: str | None,
    threads: int | None,
    lengths: str | None,
    rounds: int,
    no_memory: bool,
    json_path: Path | None,
    plot: Path | None,
) -> int:
    """Measure speed and memory of TARGET next to its rivals.

    All run in one process on one thread, unless --threads or OMP_NUM_THREADS and its like say otherwise; their outputs
    are compared first. For the layer, L,D and H make tokens of width H * D. Exit status: 0 measured,
    1 a rival computes something else, 2 the call is wrong or something cannot be run.
    """
    from conformance.benching.measure import in_fresh_process
    from conformance.benching.request import MASKS, Request
    from conformance.benching.rivals import OtherResultError
    from conformance.telling.bench import bench_lines, bench_svg, bench_tables

    sizes = _numbers("--shape", shape)
    if len(sizes) != SIZE_AXES:
        raise UsageError(
            f"--shape {shape!r} has {len(sizes)} numbers but needs 4: batch, heads, queries, width"
        )
    if kv_heads is not None and sizes[1] % kv_heads:
        raise UsageError(f"--kv-heads {kv_heads} does not divide the {sizes[1]} heads of --shape (HEAD-3)")
    if plot is not None and lengths is None:
        raise UsageError("--plot draws over lengths: give --lengths, such as --lengths 512,1024,2048")
    if len(set(against) | {target}) <= len(against):
        raise UsageError("a target is named twice: time each once")
    batch, heads, queries, width = sizes
    request = Request(
        targets=(target, *against),
        operation=known("operation", operation, DENSE),
        dtype=known("dtype", dtype, DTYPES),
        shape=(batch, heads, queries, width),
        kv_len=kv_len,
        kv_heads=kv_heads,
        is_causal=is_causal,
        mask=None if mask is None else known("mask", mask, MASKS),
        threads=threads,
        lengths=tuple(sorted(set(_numbers("--lengths", lengths)))) if lengths is not None else (),
        rounds=rounds,
        memory=not no_memory,
    )
    files = [
        (OutFile(path, what), text)
        for path, what, text in ((json_path, "result", _json), (plot, "plot", bench_svg))
        if path is not None
    ]
    check_apart((file for file, _ in files), (("target", path) for path in files_of(request.targets)))
    try:
        result = in_fresh_process(request)
    except OtherResultError as error:
        console(stderr=True).print(plain(str(error)), soft_wrap=True)
        return FAILED
    out = console()
    for table in bench_tables(result):
        out.print(table)
    for line in bench_lines(result):
        out.print(plain(line), soft_wrap=True)
    for file, text in files:
        file.write(text(result))
    return CONFORMANT


def _json(result: Any) -> str:
    return json.dumps(result, indent=1, allow_nan=False) + "\n"
