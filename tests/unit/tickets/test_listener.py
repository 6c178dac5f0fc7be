"""What a listener leaves behind when it is given up."""

from __future__ import annotations

import asyncio
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.session import AnswerRows


class Session:
    async def ask(self, statement: str, name: OutboxName, values: dict[str, Any]) -> AnswerRows:
        raise AssertionError("it was given up before")


async def test_a_question_that_is_given_up_before_it_may_be_sent_leaves_no_warning() -> None:
    listener = Listener("")
    listener._credit, listener._credited_at = -1e6, asyncio.get_running_loop().time()  # many were sent just now
    attended: Any = SimpleNamespace(name=OutboxName.parse("outbox"))
    session: Any = Session()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asking = asyncio.create_task(listener._ask(session, attended, "watermarks"))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
