"""Relay expiring tokens from Airflow's Kafka connection to a harvesting process for as long as it runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

from airflow_outbox.harvest.kafka.oauth import Token, TokenError
from airflow_outbox.harvest.supervised_child import HarvestChild

FIRST_DELAY = 1.0
LONGEST_DELAY = 30.0


async def relay_tokens(fetch: Callable[[], Token], child: HarvestChild) -> None:
    """Send the process a token, and the next one when 80% of its life are over. A failure is sent too, and passes.

    The process logs such a failure as its own error. Nothing here logs, so a token never shows.
    """
    delay = FIRST_DELAY
    while True:
        try:
            token = await asyncio.to_thread(fetch)
        except TokenError as error:
            line, pause = json.dumps({"token_error": str(error)}), delay
            delay = min(2 * delay, LONGEST_DELAY)
        else:
            line, pause = token.as_line(), max(FIRST_DELAY, token.replace_at - time.time())
            delay = FIRST_DELAY
        await child.tell(line)
        await asyncio.sleep(pause)
