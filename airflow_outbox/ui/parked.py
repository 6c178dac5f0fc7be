"""The pages of parked records, of one of them, and of the trail: they only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, status
from starlette.responses import Response

from airflow_outbox.operate.parked_requests import Choice, ListingPlace, Matched, ParkedRequests, shown
from airflow_outbox.operate.trail import TrailEntry, read_trail
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.ui.access import Asked, may_read, refusal
from airflow_outbox.ui.contents import Contents
from airflow_outbox.ui.filtering import CAUSES, LONGEST_KEY, Filter, Number, filter_read, place_read
from airflow_outbox.ui.pages import pool
from airflow_outbox.ui.query_pool import Answer, PageQuery, Session
from airflow_outbox.ui.rendering import page

router = APIRouter()
_AGE = 1.0
"""Seconds for which all viewers share an answer."""
_RECORDS = 100
_TOPICS = 100


@dataclass(frozen=True, slots=True)
class Listing:
    """A page of parked records, how many match in all, and the topics that have any that wait."""

    rows: Sequence[Mapping[str, Any]]
    matched: Matched
    topics: Sequence[str]

    @property
    def last(self) -> ListingPlace | None:
        """The place of the last record, where more may follow."""
        if len(self.rows) < _RECORDS:
            return None
        row = self.rows[-1]
        return ListingPlace(row["topic"], row["number"], row["cause"])


@router.get("/parked")
async def parked(
    request: Request,
    asked: Annotated[Asked, Depends(may_read)],
    wanted: Annotated[Filter, Depends(filter_read)],
    after: Annotated[ListingPlace | None, Depends(place_read)],
) -> Response:
    """Parked records: those that wait, or those that were discarded; and those that Postgres won't delete."""
    queries = [_query(asked, ("parked", wanted, after), partial(_list, wanted, after))]
    if after is None and (choice := wanted.undeleted()) is not None:
        queries.append(_query(asked, ("undeleted", choice), partial(_list_undeleted, choice)))
    answer, *undeleted = await pool().ask_all(queries)
    last = answer.value.last if answer.value else None
    place = {} if last is None else {"after_topic": last.topic, "after_number": last.number, "after_cause": last.cause}
    return page(
        request,
        "parked.html",
        asked=asked,
        wanted=wanted,
        listing=answer.value,
        problem=answer.problem,
        undeleted=undeleted[0] if undeleted else None,
        most=_RECORDS,
        next=wanted.query(asked, **place) if place else None,
        is_first=after is None,
        causes=CAUSES,
        refusal=refusal(asked.key, asked.uses),
        key_of=key_of,
    )


@router.get("/record")
async def record(
    request: Request,
    asked: Annotated[Asked, Depends(may_read)],
    number: Annotated[int, Query(ge=0, le=2**63 - 1)],
) -> Response:
    """One parked record, with its key, headers and value for those who may see them."""
    answer = await _asked(asked, ("record", number), partial(_show, number))
    if answer.value is None and not answer.problem:
        raise HTTPException(
            status.HTTP_404_NOT_FOUND, f"Record {number} is not parked any more: it was published in the meantime."
        )
    row: dict[str, Any] = answer.value or {}
    return page(
        request,
        "record.html",
        asked=asked,
        row=row,
        problem=answer.problem,
        insides=_insides(row) if row and asked.may_see_values else None,
        choices=_choices(asked, row) if row and row["discarded_at"] is None else {},
        refusal=refusal(asked.key, asked.uses),
    )


@router.get("/trail")
async def trail(request: Request, asked: Annotated[Asked, Depends(may_read)], before: Number = None) -> Response:
    """The requests of operators, the last one first."""
    answer = await _asked(asked, ("trail", before), partial(_read_trail, before))
    return page(
        request,
        "trail.html",
        asked=asked,
        entries=answer.value,
        problem=answer.problem,
        is_first=before is None,
        has_more=len(answer.value or ()) == _RECORDS,
    )


def key_of(row: Mapping[str, Any]) -> str | None:
    """Return a record's key as an address can have it; None if it is too long for that, or there is none."""
    if row["key"] is None or row["key_size"] > len(Contents(row["key"], 0).bytes) or row["key_size"] > LONGEST_KEY // 4:
        return None
    text = str(shown(row["key"]))
    return text or None


async def _asked(asked: Asked, subject: tuple[Any, ...], ask: Any) -> Answer[Any]:
    return await pool().ask(_query(asked, subject, ask))


def _query(asked: Asked, subject: tuple[Any, ...], ask: Any) -> PageQuery[Any]:
    key = asked.key
    return PageQuery(key.conn_id, (*subject, key.name), partial(_behind, key.outbox, ask), max_age=_AGE)


def _behind(name: OutboxName, ask: Any, session: Session) -> Any:
    return ask(session, session.shape(name).name)


def _list(wanted: Filter, after: ListingPlace | None, session: Session, name: OutboxName) -> Listing:
    requests = ParkedRequests(session.connection, name)
    choice = wanted.choice()
    return Listing(
        rows=requests.page(choice, discarded=wanted.discarded, after=after, limit=_RECORDS),
        matched=requests.matched(choice, discarded=wanted.discarded),
        topics=requests.topics(limit=_TOPICS),
    )


def _list_undeleted(choice: Choice, session: Session, name: OutboxName) -> list[dict[str, Any]]:
    return ParkedRequests(session.connection, name).undeleted(choice, limit=_RECORDS + 1, whole_keys=False)


def _show(number: int, session: Session, name: OutboxName) -> dict[str, Any] | None:
    return ParkedRequests(session.connection, name).record(number)


def _read_trail(before: int | None, session: Session, name: OutboxName) -> list[TrailEntry]:
    return read_trail(session.connection, name, before=before, limit=_RECORDS)


def _insides(row: Mapping[str, Any]) -> dict[str, Any]:
    """Key, value and headers of a record."""
    names, values = row["header_names"] or [], row["header_values"] or []
    return {
        "key": None if row["key"] is None else Contents(row["key"], row["key_size"]),
        "value": None if row["value"] is None else Contents(row["value"], row["value_size"]),
        "headers": [(shown(name), shown(value)) for name, value in zip(names, values, strict=False)],
    }


def _choices(asked: Asked, row: Mapping[str, Any]) -> dict[str, str]:
    """Return what can be acted on from a record, in words, and the query of each."""
    choices = {"this record": Filter(number=row["number"])}
    if key := key_of(row):
        choices["its key"] = Filter(topic=row["topic"], key=key)
    choices["its topic"] = Filter(topic=row["topic"])
    return {words: wanted.query(asked) for words, wanted in choices.items()}
