"""The page on pruning says what its rows say."""

from scripts.lab.torchvision_models import PAGE, summary, with_summary


def test_the_page_says_what_the_rows_say():
    text = PAGE.read_text()
    assert text == with_summary(text)


def test_a_model_that_differs_or_loses_little_is_named():
    row = {"model": "a", "difference": "1e-16", "removed_macs": "0.5", "failed": ""}
    few, other = row | {"model": "b", "removed_macs": "0.2"}, row | {"model": "c", "difference": "0.1"}
    failed = row | {"model": "d", "difference": "", "removed_macs": "", "failed": "cannot"}
    said = summary([row, few, other, failed])
    assert "fewer go, or not exact | b, c, d |" in said
    assert "tried | 4 |" in said
