"""What a program does beside computing: files and modules of the suite that it opens, attention that it calls."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "conformance"
CLOSED = tuple(
    str(path)
    for path in (
        *(PACKAGE / name for name in ("vectors", "oracle", "exploring", "problems", "defects", "spec")),
        *(ROOT / name for name in ("mha_core", "backends")),
    )
)
"""Folders from which nothing is read or imported once the program is loaded."""
MODULES = ("conformance", "mha_core")
"""Packages that a program does not import; one of its own may well be called `backends`."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
LIBRARIES = (
    "flash_attn", "xformers", "flashinfer", "sageattention", "transformer_engine", "aiter", "vllm", "sgl_kernel",
)  # fmt: skip
"""Packages whose attention is not a program's own."""
FUSED = (
    "scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_attention", "flex_attention",
    "native_multi_head_attention", "_transformer_encoder_layer", "fmha", "mha_fwd", "mha_varlen",
)  # fmt: skip
"""What torch calls its attention, in the names of what its profiler records."""


class Watch:
    """An audit hook, which nothing removes until the process ends."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._armed = False

    def arm(self) -> None:
        """Hides the suite's modules, and looks from now on."""
        for name in list(sys.modules):
            if name.partition(".")[0] in (*MODULES, "backends"):
                del sys.modules[name]
        sys.addaudithook(self._heard)
        self._armed = True

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "import":
            name = str(arguments[0])
            if name.partition(".")[0] in MODULES:
                self._note(f"imports {name}")
                raise ImportError(f"{name} is not for programs that are judged")
        elif event == "open":
            path = arguments[0]
            if isinstance(path, bytes):
                path = path.decode("utf-8", "replace")
            if isinstance(path, str) and path.startswith(CLOSED):
                self._note(f"opens {path.removeprefix(str(ROOT)).lstrip('/')}")
                raise PermissionError(f"{path} is not for programs that are judged")
        elif event in STARTS and any(folder in str(arguments) for folder in CLOSED):
            self._note("starts a program on files of the suite")

    def _note(self, text: str) -> None:
        if text not in self._seen and len(self._seen) < 8:
            self._seen.append(text)

    def told(self) -> list[str]:
        """What was seen so far."""
        return list(self._seen)


def libraries() -> list[str]:
    """Attention of others that is loaded."""
    return [f"loads {name}" for name in LIBRARIES if name in sys.modules]


@contextmanager
def profiled(torch: Any, found: list[str]) -> Iterator[None]:
    """Adds the library's attention that is called in this thread, by the records of torch's own profiler."""
    profile = torch.autograd.profiler.profile
    with profile() as records:
        yield
    names = {str(event.name) for event in records.function_events}
    found.extend(f"calls {name}" for name in sorted(names) if any(word in name for word in FUSED))
