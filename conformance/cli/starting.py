"""`mha-conformance init`: a plug-in to start from."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click

from conformance.cli.exit_codes import CONFORMANT, PROGRAM, examples
from conformance.errors import UsageError
from conformance.resources import template
from conformance.running.suggestions import known
from conformance.telling.terminal import console, plain


@dataclass(frozen=True)
class Kind:
    """A language or library that a plug-in is written in."""

    words: str
    file: str  # of the template
    suffixes: tuple[str, ...]  # that the plug-in may have

    def command(self, path: Path) -> str:
        """What runs the plug-in."""
        file = shlex.quote(str(path))
        return (
            f"run --command {shlex.quote(f'node {file}')}" if self.file.startswith("node") else f"run {file}"
        )


KINDS = {
    "numpy": Kind("attention in NumPy", "numpy.py", (".py",)),
    "torch": Kind("attention on torch tensors", "torch.py", (".py",)),
    "jax": Kind("attention in JAX", "jax.py", (".py",)),
    "node": Kind(
        "attention in JavaScript, as a program of the line protocol", "node.mjs", (".mjs", ".js", ".cjs")
    ),
}

SERVING = {
    "numpy": Kind("packed, paged, latent and merged attention in NumPy", "serving.py", (".py",)),
    "torch": Kind(
        "packed, paged, latent and merged attention on torch tensors", "serving_torch.py", (".py",)
    ),
}
"""What serving kernels do, in the libraries that it is written for."""

ADAPTERS = {
    "flash-attn": Kind(
        "an adapter of FlashAttention, with cu_seqlens and pages too", "flash_attn.py", (".py",)
    ),
    "triton": Kind("an adapter of a Triton kernel that writes into its output", "triton.py", (".py",)),
    "flex": Kind("an adapter of FlexAttention with a score_mod and a mask_mod", "flex.py", (".py",)),
    "xformers": Kind("an adapter of xFormers", "xformers.py", (".py",)),
    "transformers": Kind(
        "an adapter of an attention function of Hugging Face transformers", "transformers.py", (".py",)
    ),
}
"""Adapters to copy: the library's name -> what is written. They run where the library is installed."""


@click.command(
    epilog=examples(
        "init my_attention.py",
        "init my_attention.mjs --node",
        "init mine.py --torch --serving",
        "init mine.py --adapter flash-attn",
    )
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--torch", is_flag=True, help="Use torch tensors.")
@click.option("--jax", is_flag=True, help="Use JAX arrays.")
@click.option("--node", is_flag=True, help="Write a JavaScript program.")
@click.option(
    "--serving", is_flag=True, help="Add packed, paged, latent and merged attention: NumPy or --torch."
)
@click.option("--adapter", metavar="LIBRARY", help=f"Write an adapter to copy: {', '.join(ADAPTERS)}.")
def init(file: Path, torch: bool, jax: bool, node: bool, serving: bool, adapter: str | None) -> int:
    """Write FILE, a commented plug-in to start from: it runs at once, and passes. The default is NumPy."""
    flags = (("torch", torch), ("jax", jax), ("node", node), ("adapter", adapter is not None))
    chosen = [name for name, flag in flags if flag]
    if len(chosen) > 1:
        raise UsageError(f"init writes one plug-in: give --{chosen[0]} or --{chosen[1]}")
    language = chosen[0] if chosen else "numpy"
    if serving and language not in SERVING:
        raise UsageError(f"--serving is written in NumPy or, with --torch, for torch; leave out --{language}")
    if adapter is not None:
        kind = ADAPTERS[known("adapter", adapter, ADAPTERS)]
    else:
        kind = (SERVING if serving else KINDS)[language]
    _check(file, kind)
    words = {"CALL": f"{PROGRAM} {kind.command(Path(file.name))}", "FILE": shlex.quote(file.name)}
    text = re.sub("CALL|FILE", lambda found: words[found[0]], template(kind.file))
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError as error:
        raise UsageError(f"{file} already exists; choose another name") from error
    out = console()
    for line in (
        f"{file} holds {kind.words}: put yours where it is. Run it with",
        f"  {PROGRAM} {kind.command(file)}",
    ):
        out.print(plain(line), soft_wrap=True)
    return CONFORMANT


def _check(file: Path, kind: Kind) -> None:
    """Refuses a name that nothing could run."""
    if file.suffix not in kind.suffixes:
        better = file.with_suffix(kind.suffixes[0]) if file.name else kind.file
        hint = " (or add --node)" if file.suffix in KINDS["node"].suffixes else ""
        raise UsageError(f"{str(file)!r} must end in {kind.suffixes[0]}, as in {better}{hint}")
    if not file.parent.is_dir():
        raise UsageError(f"{file.parent} is not a folder; create it first")
