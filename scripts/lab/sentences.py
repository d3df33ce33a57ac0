"""Report the long sentences of the documents: python -m scripts.lab.sentences [--pages].

A full stop, a question mark or an exclamation mark ends a sentence; so does the end of a list item or a paragraph. Code
blocks, tables, headings and pictures do not count. Exit code 1: more sentences than MOST_LONG have over 30 words. Lower
MOST_LONG when you shorten some; never raise it.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MOST_WORDS = 30
MOST_LONG = 0
LEFT_OUT = (
    re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"!\[[^]]*\]\([^)]*\)|^#.*$|^\|.*$", re.MULTILINE),
)
LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")
PARAGRAPH = re.compile(r"\n\s*\n|\n(?=\s*- |\s*\d+\. )")
SENTENCE = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)\"])|(?<=[.!?]\*\*))\s+(?=[\"'`*(A-Z0-9]|lvfl )")


def main() -> int:
    """Print the long sentences, longest first, and with --pages the words and words a sentence of every page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", action="store_true", help="also print the words of every page and of its sentences")
    show_pages = parser.parse_args().pages
    long: list[tuple[int, str, str]] = []
    for page in PAGES:
        text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
        sentences = split_sentences(text)
        long += [(count, name, each) for each in sentences if (count := len(each.split())) > MOST_WORDS]
        if show_pages:
            mean = sum(len(each.split()) for each in sentences) / max(1, len(sentences))
            print(f"{name}: {len(text.split())} words, {mean:.1f} a sentence")
    for count, name, sentence in sorted(long, reverse=True):
        print(f"{name}: {count} words: {sentence}")
    print(f"{len(long)} sentences have more than {MOST_WORDS} words ({MOST_LONG} may)")
    return int(len(long) > MOST_LONG)


def split_sentences(markdown: str) -> list[str]:
    """Return the sentences of a page's paragraphs and list items."""
    for pattern in LEFT_OUT:
        markdown = pattern.sub("", markdown)
    paragraphs = (" ".join(part.split()) for part in PARAGRAPH.split(LINK.sub(r"\1", markdown)))
    return [sentence for paragraph in paragraphs if paragraph for sentence in SENTENCE.split(paragraph)]


if __name__ == "__main__":
    sys.exit(main())
