"""A key, header or value as people read it."""

from __future__ import annotations

import pytest

from airflow_outbox.ui.contents import Contents, visible


def whole(raw: str | bytes) -> Contents:
    return Contents(raw, len(raw if isinstance(raw, bytes) else raw.encode()))


@pytest.mark.parametrize(
    ("raw", "text", "json"),
    [
        ('{"a":[1,"ü"]}', '{"a":[1,"ü"]}', '{\n  "a": [\n    1,\n    "ü"\n  ]\n}'),
        (b'{"a":1}', '{"a":1}', '{\n  "a": 1\n}'),
        ("17", "17", None),
        ("{broken", "{broken", None),
        ("[" * 100_000, "[" * 100_000, None),
        (b"\xff\x00", None, None),
        ("", "", None),
    ],
)
def test_text_and_json_are_shown_where_it_is_that(raw: str | bytes, text: str | None, json: str | None) -> None:
    contents = whole(raw)
    assert (contents.text, contents.json) == (text, json)


def test_what_is_cut_is_shown_as_far_as_it_goes() -> None:
    half = Contents("üü".encode()[:3], 4)
    assert (half.text, half.json, half.is_whole) == ("ü", None, False)
    assert Contents(b'{"a":1', 7).json is None
    assert whole("üü".encode()[:3]).text is None  # that is all there is, and no text


def test_hexadecimal_has_rows_of_sixteen_bytes_and_an_end() -> None:
    first, second = whole(b"0123456789abcdef<\x00>").hex.splitlines()
    assert first == "000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef"
    assert second == "000010  3c 00 3e" + " " * 41 + "<.>"
    large = whole(b"x" * 5000)
    assert (len(large.hex.splitlines()), large.hex_is_whole) == (256, False)


def test_what_nobody_sees_or_what_turns_others_round_is_shown_as_an_escape() -> None:
    assert visible("paid\u202e0001\x1b[31m\x00\ufeff") == "paid\\u202e0001\\x1b[31m\\x00\\ufeff"
    plain = "Zoë\t👨\u200d👩\n\u0627\u0644\r\n"
    assert visible(plain) == plain
