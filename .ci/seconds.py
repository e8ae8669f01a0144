"""The seconds of each session, the longest first, from the report of nox."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Prints one line a session: seconds, result, name."""
    sessions = json.loads(Path(sys.argv[1]).read_text("utf-8"))["sessions"]
    for session in sorted(sessions, key=lambda session: -session["duration"]):
        arguments = ", ".join(session["args"].values())
        name = f"{session['name']}({arguments})" if arguments else session["name"]
        print(f"{session['duration']:6.0f} s  {session['result']:8}  {name}")


if __name__ == "__main__":
    main()
