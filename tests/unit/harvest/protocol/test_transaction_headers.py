"""Headers that tell of source transactions."""

from __future__ import annotations

from uuid import UUID

from airflow_outbox.harvest.protocol.transaction_headers import StampNames, Stamps
from airflow_outbox.values.pages import Length, OutboxRow


def row(number: int, transaction_id: int) -> OutboxRow:
    return number, "t", "k", "v", ["own"], ["1"], None, number, transaction_id


def test_place_and_total_go_over_pages() -> None:
    stamps = Stamps(StampNames(transaction_id="tx", place="nr", total="of"), outbox_id=UUID(int=1))
    lengths = {7: Length(3, 9), 8: Length(1, 4)}
    first = stamps.stamped([row(1, 7), row(4, 8)], lengths)
    second = stamps.stamped([row(5, 7), row(9, 7)], lengths)
    assert [row[4] for row in first] == [["own", "tx", "nr", "of"]] * 2
    assert [row[5] for row in [*first, *second]] == [
        ["1", "7", "1", "3"],
        ["1", "8", "1", "1"],
        ["1", "7", "2", "3"],
        ["1", "7", "3", "3"],
    ]


def test_only_what_has_a_name_is_added() -> None:
    assert not StampNames()
    stamps = Stamps(StampNames(outbox_id="outbox"), outbox_id=UUID(int=1))
    [(*_, names, values, _, _, _)] = stamps.stamped([row(1, 7)], {7: Length(1, 1)})
    assert (names, values) == (["own", "outbox"], ["1", str(UUID(int=1))])
