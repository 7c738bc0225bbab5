"""Class labels as prompts: by number, by any of a class's names, and what is said of anything else."""

from __future__ import annotations

import pytest
import torch

from lantern_demo.models.llamagen.labels import ClassLabels, label_of, labels, search


def test_every_class_goes_by_its_number_and_its_names() -> None:
    found = labels()
    assert [label.id for label in found] == list(range(1000))
    # the order of the dataset, at its ends and at the two cranes
    assert [found[i].names[0] for i in (0, 1, 134, 517, 999)] == ["tench", "goldfish", "crane", "crane", "toilet tissue"]
    assert all(label_of(label.title) == label and label_of(str(label.id)) == label and all(label.names) for label in found)
    for text in ("  GoldFish ", "carassius auratus", "goldfish (1)", "goldfish, Carassius auratus"):
        encoded = ClassLabels().encode(text)
        assert label_of(text).id == 1 and encoded.features.tolist() == [1] and encoded.features.dtype == torch.int64
        assert encoded.mask is None and encoded.unknown == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crane", r"names several classes; choose crane \(134\) or crane \(517\)"),
        ("goldfsh", r"got 'goldfsh'; near it are goldfish \(1\)"),
        ("1000", r"from 0 to 999, got '1000'"),
        ("qqqq", r"got 'qqqq'; for example: goldfish \(1\)"),
        ("-1", r"from 0 to 999, got '-1'"),
        ("\u00b2", "must be an ImageNet class"),
    ],
)
def test_what_is_no_class_gets_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        label_of(text)
    with pytest.raises(ValueError, match=says):
        ClassLabels().check(text)


def test_search_puts_the_likeliest_first() -> None:
    assert [label.id for label in search("Crane")[:2]] == [134, 517]
    assert [label.id for label in search("gold", 3)] == [1, 11, 207]
    assert search("goldfsh")[0].id == 1
    assert [label.id for label in search("99", 3)] == [99, 990, 991]
    assert search("qqqq") == []
    assert len(search("a")) == 20
