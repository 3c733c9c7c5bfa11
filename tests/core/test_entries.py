"""What entries are known by, and in which order they come."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.entries import past_all

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)


@given(texts, texts)
def test_what_begins_with_a_prefix_comes_before_the_bound(prefix: str, rest: str) -> None:
    bound = past_all(prefix)
    assert bound is None or prefix + rest < bound


@given(texts.filter(bool), texts)
def test_what_does_not_begin_with_it_does_not_come_between(prefix: str, other: str) -> None:
    bound = past_all(prefix)
    is_between = other >= prefix and (bound is None or other < bound)
    assert is_between == other.startswith(prefix)


def test_nothing_comes_after_the_last_character() -> None:
    assert past_all("\U0010ffff") is None
    assert past_all("a\U0010ffff") == "b"
    assert past_all("\ud7ff") == "\ue000"
