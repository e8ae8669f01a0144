"""The process that measures: a request on stdin, the answer into a file."""

import json
import sys
from pathlib import Path
from typing import Any

from conformance.benching.measure import MEMORY, measure, memory
from conformance.benching.request import Request
from conformance.benching.rivals import OtherResultError
from conformance.errors import UsageError


def main() -> None:
    """`python -m conformance.benching measure|memory ANSWER.json`."""
    task, answer = sys.argv[1:]
    request = Request.of(json.load(sys.stdin))
    try:
        said: dict[str, Any] = {"result": memory(request) if task == MEMORY else measure(request)}
    except (UsageError, OtherResultError) as error:
        said = {"error": str(error), "other": isinstance(error, OtherResultError)}
    Path(answer).write_text(json.dumps(said, allow_nan=False), "utf-8")


main()
