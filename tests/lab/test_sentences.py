"""scripts/lab/sentences.py: where a sentence ends, and what is none."""

from scripts.lab.sentences import split_sentences

PAGE = """# A heading. With two sentences.

Run `lvfl train a.yaml`. It takes
30 s, see [this page](a/b.md). Then:

- one item, i.e. one sentence
- **Another.** And one more (of three). Really.

| a table. | of cells. |

```
code. More code.
```
"""


def test_sentences_are_those_of_paragraphs_and_items():
    assert split_sentences(PAGE) == [
        "Run `lvfl train a.yaml`.",
        "It takes 30 s, see this page.",
        "Then:",
        "- one item, i.e. one sentence",
        "- **Another.**",
        "And one more (of three).",
        "Really.",
    ]
