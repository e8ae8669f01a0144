"""Looks for links of the built site that lead nowhere: python tests/telling/built_site.py FOLDER."""

import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from os.path import normpath
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and what a link may lead to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes in a tag."""
        given = dict(attrs)
        if tag not in ("base", "form"):
            self.links += [value for name in ("href", "src") if (value := given.get(name))]
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}


def broken(site: Path) -> list[str]:
    """`page: link` of every link within the site to a file or an anchor that is not there."""
    site = site.resolve()
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # served at any address, so with addresses of its own
            continue
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = Path(normpath(path.parent / unquote(parts.path))) if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            anchors = pages[to].anchors if to in pages else set()
            anchored = parts.fragment in ("", "__top") or unquote(parts.fragment) in anchors
            if not to.is_relative_to(site) or not to.is_file() or not anchored:
                found.append(f"{path.relative_to(site).as_posix()}: {link}")
    return found


def main(words: Sequence[str]) -> int:
    """Prints them; 1 if there are some."""
    if len(words) != 1 or not Path(words[0], "index.html").is_file():
        print("give the folder of a built site", file=sys.stderr)
        return 2
    found = broken(Path(words[0]))
    print("\n".join([*found, f"{len(found)} links lead nowhere"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
