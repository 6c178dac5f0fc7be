"""One harvesting process of a trigger: started, followed, and started again whenever it dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_outbox.errors import HarvestProcessError, OutboxError
from airflow_outbox.harvest.kafka.oauth import Token
from airflow_outbox.harvest.renewal import READ_INTERVAL, fingerprint
from airflow_outbox.harvest.supervised_child import HarvestChild
from airflow_outbox.triggers.harvest_report import HarvestReport, LogLine
from airflow_outbox.triggers.stats import StatsRelay
from airflow_outbox.triggers.token_relay import relay_tokens

FAILED_STARTS = 4
"""A deferred task fails when this many processes in a row have ended before they harvested."""
FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
LONGEST_UNREACHED = 10.0
"""Seconds until the next process, after one that could not reach a server: that passes, or its login is corrected."""
LONGEST_SILENCE = 10
"""Seconds: a process tells its progress every second. One that has told nothing for longer is not believed any more."""

Configure = Callable[[], tuple[dict[str, Any], Callable[[], Token] | None]]


class Audience(Protocol):
    """Hears what a process reports."""

    def log_line(self, line: LogLine) -> None: ...

    def warn(self, text: str) -> None: ...

    def tell(self, event: Mapping[str, Any]) -> None:
        """An event has come."""

    def lose_sight(self, verdict: Mapping[str, Any]) -> None:
        """The process sees nothing any more: this is the event of a verdict that says so."""

    def show_progress(self, now: float) -> None:
        """The process's progress may have changed."""


class SupervisedProcess:
    """Harvests by `configure` until `until`. `gives_up`: not for ever, when it can't work."""

    def __init__(
        self,
        *,
        outbox: str,
        until: str,
        configure: Configure,
        audience: Audience,
        gives_up: bool,
        command: Sequence[str],
    ) -> None:
        self.report = HarvestReport()
        self._until = until
        self._configure = configure
        self._audience = audience
        self._gives_up = gives_up
        self._command = command
        self._stats = StatsRelay(outbox, audience.warn)
        self._child: HarvestChild | None = None
        self._used: object = None  # by what the process was configured
        self._unreached = asyncio.Event()
        self._could_not_reach = False
        self._is_renewed = False
        self._silent_for = 0
        self._has_lost_sight = False

    async def run(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the news of what was published, until the harvest has ended gracefully. While it can't reach a server,
        the connections are read again; when they have changed, another process goes on by them.

        Raises HarvestProcessError when it gives up: for a configuration that can't work, and after four processes in a
        row that did not begin to harvest.
        """
        delay, failed_starts = FIRST_DELAY, 0
        while True:
            begun = time.monotonic()
            self.report.begin_process()
            self._unreached.clear()
            self._is_renewed, self._could_not_reach, self._used = False, False, None
            try:
                config, token_source = await asyncio.to_thread(self._configure)
                self._used = fingerprint(config)
                async for news in self._harvest(config, token_source):
                    yield news
                if self.report.end_reason in ("drained", "time"):
                    return
                if self._is_renewed:
                    self._audience.warn("a connection has changed: the harvesting process starts again by it")
                    continue
                problem, hopeless = self.report.why_it_ended(self._child.status if self._child else None), False
            except (OutboxError, AirflowNotFoundException) as error:
                problem, hopeless = str(error), True
            except Exception as error:  # Airflow's API server may be away, or the machine out of processes
                problem, hopeless = f"the harvesting process could not be started: {error!r}", False
            failed_starts = 0 if self.report.started else failed_starts + 1
            if self._gives_up and (hopeless or failed_starts >= FAILED_STARTS):
                raise HarvestProcessError(problem)
            if self.report.started and time.monotonic() - begun > LONGEST_DELAY:
                delay = FIRST_DELAY
            if self._could_not_reach:
                delay = min(delay, LONGEST_UNREACHED)
            if problem != self.report.last_error:  # which is in the log already
                self._audience.warn(problem)
            self._audience.warn(f"the harvesting process restarts in {delay:.0f} s")
            self._lose_sight(problem)
            self._stats.restarts()
            await self._wait(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    async def end(self) -> None:
        """End the process, within a second. Nothing happens when there is none."""
        if self._child is not None:
            await self._child.end()

    def _lose_sight(self, problem: str) -> dict[str, Any]:
        """Show that nobody here sees how the outbox is doing, and return it as an event."""
        self._has_lost_sight = True
        verdict = self.report.lose_sight(problem)
        self._audience.lose_sight(verdict)
        self._audience.show_progress(time.monotonic())
        self._stats.lose_sight()
        return verdict

    def _log(self, event: Mapping[str, Any]) -> None:
        for line in self.report.take(event, time.monotonic()):
            self._audience.log_line(line)

    async def _mind_silence(self, child: HarvestChild) -> None:
        """Say so when the process has told nothing for too long: it is frozen, and what it told last may be wrong.

        Seconds are counted one by one: they stand still while the triggerer is frozen itself.
        """
        while True:
            await asyncio.sleep(1)
            self._silent_for += 1
            if not self.report.started or self._silent_for < LONGEST_SILENCE:
                continue
            if self._silent_for == LONGEST_SILENCE:
                problem = f"the harvesting process {child.pid} has told nothing for {LONGEST_SILENCE} s. "
                problem += "See whether it is stopped, or its machine is out of memory or processor time"
                self._log(self._lose_sight(problem))
            self._audience.show_progress(time.monotonic())  # again, if that was not possible before

    async def _wait(self, delay: float) -> None:
        """Wait, but no longer than until the connections have changed."""
        while delay > 0:
            await asyncio.sleep(min(delay, READ_INTERVAL))
            delay -= READ_INTERVAL
            if delay > 0 and await self._has_changed():
                return

    async def _has_changed(self) -> bool:
        """Whether the connections are others now than those by which the process was started."""
        try:
            config, _ = await asyncio.to_thread(self._configure)
        except Exception:  # what can't be read now is no change
            return False
        return fingerprint(config) != self._used

    async def _end_when_changed(self, child: HarvestChild) -> None:
        while True:
            await self._unreached.wait()
            if await self._has_changed():
                self._is_renewed = True
                await child.end()
                return
            self._unreached.clear()

    async def _harvest(
        self, config: Mapping[str, Any], token_source: Callable[[], Token] | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Run one process to its end."""
        self._child = child = await HarvestChild.start(
            config, until=self._until, relays_tokens=token_source is not None, command=self._command
        )
        self._silent_for = 0
        beside = [asyncio.create_task(self._end_when_changed(child)), asyncio.create_task(self._mind_silence(child))]
        if token_source is not None:
            beside.append(asyncio.create_task(relay_tokens(token_source, child)))
        try:
            async for event in child.events():
                now = time.monotonic()
                self._silent_for = 0
                self._log(event)
                self._stats.take(event)
                if event["event"] == "unreached":
                    self._could_not_reach = True
                    self._unreached.set()
                if event["event"] == "progress":
                    self._audience.show_progress(now)
                self._audience.tell(event)
                if event["event"] == "measured" and self._has_lost_sight:  # to the process its verdict may be no news
                    self._has_lost_sight = False
                    verdict = {"event": "verdict", **event["verdict"]}
                    self._log(verdict)
                    self._audience.tell(verdict)
                if news := self.report.news_due(now):
                    yield news
        finally:
            for task in beside:
                task.cancel()
            await child.end()
        if news := self.report.news_due(time.monotonic(), final=True):
            yield news


async def merged(processes: Sequence[SupervisedProcess]) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the news of all, with how many records all have published, until all have ended.

    Raises what the first one raises, and ends the others.
    """
    news: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue()

    async def follow(process: SupervisedProcess) -> None:
        try:
            async for each in process.run():
                news.put_nowait({**each, "published": sum(process.report.published for process in processes)})
        except Exception as error:
            news.put_nowait(error)
        else:
            news.put_nowait(None)

    tasks = [asyncio.create_task(follow(process)) for process in processes]
    try:
        left = len(tasks)
        while left:
            each = await news.get()
            if isinstance(each, Exception):
                raise each
            if each is None:
                left -= 1
            else:
                yield each
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
