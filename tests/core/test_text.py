"""Text as people see it: nothing hidden, nothing that steers, nothing without an end."""

import json
import time
import unicodedata

import pytest

from fairlead.core.errors import JobNotFound, UnknownQueue, UnknownTask, did_you_mean
from fairlead.core.text import (
    QUOTED,
    SHOWN,
    brief,
    cut,
    escaped,
    escaped_json,
    escaped_lines,
    listed,
    sentence,
)

HUGE = 10_000_000
UNSEEN = [
    *("\x00", "\x1b", "\x7f", "\x9b", "\n", "\r", "\u2028", "\u2029"),
    *("\u00ad", "\u034f", "\u061c", "\u180e", "\u115f", "\u2800", "\u3164", "\uffa0"),
    *map(chr, [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)]),
    *("\ufeff", "\ufff9", "\ufffa", "\ufffb", "\ufe0f", "\U000e0001", "\U000e0041", "\U000e01ef"),
    *("\ud800", "\udcff", "\udfff"),
]


@pytest.mark.parametrize("char", UNSEEN, ids=lambda char: f"U+{ord(char):04X}")
def test_what_nobody_sees_is_shown_by_its_code(char: str) -> None:
    shown = escaped(f"ad{char}min")
    assert char not in shown
    assert shown.startswith("ad\\")
    assert shown.endswith("min")
    shown.encode()  # A terminal takes it.
    written = escaped_json(json.dumps(f"ad{char}min", ensure_ascii=False))
    assert char not in written
    assert json.loads(written) == f"ad{char}min"


def test_every_format_character_is_shown_by_its_code() -> None:
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    # Arabic and Syriac signs before numbers are of this category too, and can be seen.
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    hidden = [
        code
        for code in range(0x110000)
        if unicodedata.category(chr(code)) in steering and code not in seen
    ]
    assert not [f"{code:04x}" for code in hidden if chr(code) in escaped(chr(code))]


@pytest.mark.parametrize("text", ["Größe", "漢字", "עברית", "e\u0301", "👋🏽", "a b\u00a0c"])
def test_what_people_write_stays(text: str) -> None:
    assert escaped(text) == text


def test_lines_end_only_where_a_newline_is() -> None:
    assert escaped_lines("a\nb\rc\x85d\u2028e") == ["a", "b\\rc\\x85d\\u2028e"]


def test_of_what_is_long_the_beginning_is_shown() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcdef", 3) == "abc… (3 more characters)"
    assert len(escaped("x" * HUGE)) < SHOWN + 50
    assert listed(["b", "a"]) == "b, a"
    assert listed(map(str, range(1000)), 3) == "0, 1, 2 and 997 more"
    assert len(listed(["x" * HUGE] * 1000)) < 20 * (QUOTED + 50)


class Mute:
    """Something that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("mail", "'mail'"),
        ("x" * 128, repr("x" * 128)),
        ("x" * 129, f"{'x' * 128!r}…"),
        ("\u200b", "'\\u200b'"),
        (b"x" * 999, f"{b'x' * 128!r}…"),
        (7, "7"),
        (10**5000, "a number of 16,610 bits"),
        ([0] * HUGE, "a list of 10,000,000"),
        ({"a": 1}, "{'a': 1}"),
        (["x" * 1000], "['" + "x" * 126 + "…"),
        ([10**5000], "a list"),
        (Mute(), "a Mute"),
    ],
    ids=range(12),
)
def test_an_error_quotes_no_more_than_can_be_read(value: object, told: str) -> None:
    assert brief(value) == told


def test_a_name_of_ten_megabytes_is_compared_with_nothing() -> None:
    name = "ab" * (HUGE // 2)
    began = time.process_time()
    assert did_you_mean(name, ["abab"] * 1000) == ""
    assert did_you_mean("abab", [name] * 1000) == ""
    for problem in (UnknownTask(name, ["abab"]), UnknownQueue(name, [name]), JobNotFound(name)):
        assert len(str(problem)) < 600
    assert escaped_json(name) == name
    assert time.process_time() - began < 2


def test_hidden_characters_by_the_million_are_escaped_in_a_moment() -> None:
    began = time.process_time()
    assert len(escaped_json("é\u200b" * 1_000_000)) == 7_000_000
    assert time.process_time() - began < 2


@pytest.mark.parametrize("text", ["it is.", "is it?", "it is!", "it …"])
def test_a_sentence_has_one_end(text: str) -> None:
    assert sentence(text) == text
    assert sentence("it is") == "it is."
