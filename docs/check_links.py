"""Check the links inside of the built documentation: every file and every anchor is there.

python docs/check_links.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """A page's anchors and what it links to."""

    def __init__(self, path):
        super().__init__()
        self.anchors = set()
        self.links = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        key = "href" if tag in ("a", "link") else "src"
        if attributes.get(key):
            self.links.append(attributes[key])


def broken_links(folder):
    """Yield (page, link) for what leads nowhere."""
    # What the theme keeps in _static is no page.
    paths = [path for path in folder.rglob("*.html") if "_static" not in path.parts]
    pages = {path.resolve(): Page(path) for path in paths}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchors = pages[target].anchors if target in pages else None
            missing = anchors is not None and parts.fragment and parts.fragment not in anchors
            if not target.exists() or missing:
                yield path, link


def main(folder):
    broken = [f"{path}: {link}" for path, link in broken_links(Path(folder))]
    print("\n".join(broken) or "All links inside of the documentation lead somewhere.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
