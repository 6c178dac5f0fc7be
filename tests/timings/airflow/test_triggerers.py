"""Two triggerers on one metadata database, under load: stopped, ended, killed; triggers moved; Dags paused.

Airflow runs a trigger twice whenever it takes a triggerer for dead that is not. Then it depends on the harvesting
processes' own election and fence: one leader's effects at any time, per key in order, nothing lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from uuid import UUID

import psutil
import psycopg
import pytest
from integration.airflow.conftest import TRIGGERER_TIMEOUT, clean_up, gone, harvesting, processes_of
from support.harvesting import PATIENCE, Outbox, wait_until

from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

from .load import SteadyLoad, effects_of_others

pytestmark = [pytest.mark.alone, pytest.mark.long]  # an Airflow with two triggerers, for minutes

TASK, ASSET = "steady_task", "steady_asset"
MOVED_SECONDS = TRIGGERER_TIMEOUT + 40.0  # Airflow takes most of them, on a busy machine
SETTLED_SECONDS = 120.0
A_WHILE = 400  # records, at 200 a second


class Triggerers:
    """The triggerers of an Airflow that harvests two outboxes under load, and where the harvesting processes are."""

    def __init__(self, airflow: AirflowStandalone, metadata: str, loads: dict[str, SteadyLoad]) -> None:
        self.airflow = airflow
        self.loads = loads
        self._metadata = metadata

    def running(self) -> list[psutil.Process]:
        found = processes_of(self.airflow, "triggerer")
        pids = {process.pid for process in found}
        return [process for process in found if process.ppid() not in pids]

    def complete(self) -> None:
        """Start triggerers until there are two."""
        for _ in range(len(self.running()), 2):
            self.airflow.start_triggerer()

    def of(self, harvest: psutil.Process) -> psutil.Process:
        """The triggerer that a harvesting process belongs to."""
        runner = harvest.parent()
        triggerer = runner.parent() if runner else None
        assert triggerer is not None
        assert "triggerer" in triggerer.cmdline()
        return triggerer

    def harvest(self, name: str) -> psutil.Process:
        """The process that leads the harvest of an outbox. psutil.NoSuchProcess when it is gone."""
        ((member,),) = self.loads[name].outbox.query(f"SELECT coalesce(member, ':0') FROM {name}_shard")
        return psutil.Process(int(member.rpartition(":")[2]))

    def settle(self) -> float:
        """Wait until two triggerers are at work, and each outbox has one process, which leads; the seconds it took."""
        return wait_until(
            lambda: len(self._jobs()) == len(self.running()) == 2 and self.settled(*self.loads),
            within=SETTLED_SECONDS,
            doing=self.state,
        )

    def state(self) -> str:
        leaders = [load.leaders[-2:] for load in self.loads.values()]
        return (
            f"one leading process an outbox; triggerers: {self._jobs()}, {self.running()}, "
            f"processes: {harvesting(self.airflow)}, leaders: {leaders}"
        )

    def settled(self, *names: str) -> bool:
        """Whether these outboxes, and no others, have one process each, and it leads."""
        with suppress(psutil.NoSuchProcess):
            leading = {self.harvest(name).pid for name in names}
            return len(leading) == len(names) and {each.pid for each in harvesting(self.airflow)} == leading
        return False

    def require_all_well(self, *, within: float = PATIENCE) -> None:
        for load in self.loads.values():
            load.require_all_well(within=within)

    def surge(self) -> None:
        """Return when every outbox has just got more than it loses in a moment."""
        for load, count in [(load, load.surge()) for load in self.loads.values()]:
            load.wait(count)

    def put_in_flight(self) -> None:
        """Return when every outbox has records in flight. An outbox whose surge is over gets another one."""
        deadline = time.monotonic() + 60
        while idle := [load for load in self.loads.values() if not load.in_flight]:
            assert time.monotonic() < deadline, self.state()
            for load in idle:
                load.surge()

    def pass_a_while(self) -> None:
        """Wait until much more has been stashed, and has arrived."""
        for load, count in [(load, load.stashed + A_WHILE) for load in self.loads.values()]:
            load.wait(count)
        self.require_all_well()

    def place(self, *, apart: bool) -> None:
        """Have both harvests on one triggerer, or one on each."""
        for _ in range(5):  # Airflow may place them again meanwhile
            if self._apart() == apart:
                return
            self._move(ASSET)
        raise AssertionError(self.state())

    def warm_up(self) -> None:
        """Let each of the two triggerers set an XCom.

        The first one takes a triggerer some seconds, on a busy machine more than twenty, in which it is silent, and
        the other takes its triggers.
        """
        wait_until(self._progress, within=60, doing="an XCom")
        self._move(TASK)
        before = self._progress()
        wait_until(lambda: self._progress() != before, within=60, doing="an XCom of the other triggerer")
        self.settle()

    def _apart(self) -> bool:
        return self.of(self.harvest(TASK)) != self.of(self.harvest(ASSET))

    def _progress(self) -> object:
        (run,) = self.airflow.api.runs(TASK)
        return self.airflow.api.xcom(TASK, run["dag_run_id"], "harvest", "progress")

    def _move(self, name: str) -> None:
        """Assign an outbox's trigger to the other triggerer, as Airflow does."""
        self.settle()
        before = self.harvest(name)
        with self._connected() as connection:
            connection.execute(
                "UPDATE trigger SET triggerer_id = "
                "(SELECT max(id) FROM job WHERE id = ANY(%(jobs)s) AND id <> trigger.triggerer_id) "
                "WHERE EXISTS (SELECT FROM task_instance WHERE trigger_id = trigger.id) = %(of_task)s",
                {"jobs": self._jobs(), "of_task": name == TASK},
            )
        wait_until(lambda: gone(before), within=MOVED_SECONDS, doing="the end of the process that was moved")
        self.settle()

    def _jobs(self) -> list[int]:
        """The triggerers that Airflow takes for alive."""
        with self._connected() as connection:
            found = connection.execute(
                "SELECT id FROM job WHERE job_type = 'TriggererJob' AND end_date IS NULL "
                "AND latest_heartbeat > now() - make_interval(secs => %s)",
                [TRIGGERER_TIMEOUT],
            )
            return [number for (number,) in found]

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self._metadata, autocommit=True) as connection:
            yield connection


@pytest.fixture(scope="module")
def shared(
    airflow: AirflowStandalone, metadata: str, postgres: EmbeddedPostgres, outboxes: dict[str, Outbox]
) -> Iterator[Triggerers]:
    with ExitStack() as stack:
        loads = {name: stack.enter_context(SteadyLoad(outboxes[name])) for name in (TASK, ASSET)}
        airflow.api.unpause(ASSET)
        airflow.api.unpause(TASK)
        airflow.api.wait_for_task(TASK, airflow.api.trigger(TASK), "harvest", "deferred", timeout=PATIENCE)
        triggerers = Triggerers(airflow, postgres.dsn(metadata), loads)
        triggerers.complete()
        triggerers.warm_up()
        try:
            yield triggerers
        finally:
            clean_up(airflow, postgres.dsn(metadata))


@pytest.fixture
def triggerers(shared: Triggerers) -> Iterator[Triggerers]:
    """Two triggerers at work, both outboxes under load and harvested."""
    print("Airflow's log:", shared.airflow.log)
    shared.complete()
    shared.settle()
    yield shared
    shared.require_all_well()


@contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    """Stop processes where they are, and let them go on at the end."""
    try:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with its processes"])
def test_a_triggerer_that_was_stopped_and_goes_on_has_had_one_leaders_effects(
    triggerers: Triggerers, whole: bool
) -> None:
    triggerers.place(apart=False)
    before = {name: triggerers.harvest(name) for name in triggerers.loads}
    triggerer = triggerers.of(before[TASK])
    runner = before[TASK].parent()
    assert runner is not None
    if whole:
        triggerers.put_in_flight()
    else:  # the harvests go on while the triggerer is stopped
        triggerers.surge()
    with stopped(triggerer, runner, *(before.values() if whole else ())):
        if whole:
            assert all(load.in_flight for load in triggerers.loads.values()), "the stop came too late"
        took = wait_until(
            lambda: len(harvesting(triggerers.airflow)) == 4, within=MOVED_SECONDS, doing="a second process an outbox"
        )
        print(f"a second process {took:.1f} s after the stop")
        triggerers.pass_a_while()
        for name, harvest in before.items():
            assert (triggerers.harvest(name) == harvest) is not whole, "who leads"
            assert not gone(harvest)
        triggerers.surge()
    took = wait_until(lambda: all(map(gone, before.values())), within=15, doing="the end of the first processes")
    print(f"one process an outbox again after {took:.1f} s")
    triggerers.settle()
    triggerers.pass_a_while()
    assert triggerers.settled(*triggerers.loads)
    assert all(triggerers.of(triggerers.harvest(name)) != triggerer for name in triggerers.loads)
    assert not gone(triggerer)
    for name, load in triggerers.loads.items():
        assert load.leaders[-2:] == [before[name].pid, triggerers.harvest(name).pid], "nobody else has led"


def test_a_harvest_moves_to_the_triggerer_that_its_trigger_is_assigned_to(triggerers: Triggerers) -> None:
    triggerers.place(apart=False)
    staying, moving = triggerers.harvest(TASK), triggerers.harvest(ASSET)
    triggerers.place(apart=True)
    assert gone(moving)
    assert triggerers.harvest(TASK) == staying


def test_pausing_ends_the_harvest_of_an_asset_and_not_that_of_a_task(triggerers: Triggerers) -> None:
    of_task, of_asset = triggerers.harvest(TASK), triggerers.harvest(ASSET)
    for dag in (TASK, ASSET):
        triggerers.airflow.api.pause(dag)
    took = wait_until(lambda: gone(of_asset), within=20, doing="the end of the asset's process")
    print(f"paused: no process of the asset after {took:.1f} s")
    triggerers.loads[TASK].require_all_well(within=10)
    assert triggerers.settled(TASK)
    waiting = triggerers.loads[ASSET].stashed
    for dag in (ASSET, TASK):
        triggerers.airflow.api.unpause(dag)
    print(f"unpaused: harvested again after {triggerers.settle():.1f} s")
    assert triggerers.loads[ASSET].arrived < triggerers.loads[ASSET].stashed
    triggerers.pass_a_while()
    assert triggerers.loads[ASSET].arrived >= waiting
    assert triggerers.harvest(TASK) == of_task
    assert len(triggerers.airflow.api.runs(TASK)) == 1


def test_a_triggerer_that_ends_in_order_hands_its_harvest_to_the_other(triggerers: Triggerers) -> None:
    triggerers.place(apart=True)
    ending, staying = triggerers.harvest(TASK), triggerers.harvest(ASSET)
    triggerers.of(ending).terminate()
    try:
        took = wait_until(lambda: gone(ending), doing="the end of its process")
        moved = wait_until(lambda: triggerers.settled(*triggerers.loads), within=MOVED_SECONDS, doing=triggerers.state)
        print(f"terminated: no process after {took:.1f} s, led by the next one after another {moved:.1f} s")
        assert moved < TRIGGERER_TIMEOUT, "it has said that it ends"
        assert triggerers.harvest(ASSET) == staying, triggerers.state()
        assert triggerers.of(triggerers.harvest(TASK)) == triggerers.of(staying)
    finally:
        triggerers.airflow.start_triggerer()  # in place of the one that may take ten seconds more to end


def test_a_triggerer_that_is_killed_leaves_no_process_and_the_other_goes_on(triggerers: Triggerers) -> None:
    triggerers.place(apart=True)
    lost, staying = triggerers.harvest(ASSET), triggerers.harvest(TASK)
    triggerer, runner = triggerers.of(lost), lost.parent()
    assert runner is not None
    triggerer.kill()
    runner.kill()
    wait_until(lambda: gone(lost), within=10, doing="the end of its process")
    triggerers.loads[TASK].require_all_well()
    moved = wait_until(lambda: triggerers.settled(*triggerers.loads), within=MOVED_SECONDS, doing=triggerers.state)
    print(f"killed: led by the next one {moved:.1f} s after the process was gone")
    assert triggerers.harvest(TASK) == staying
    assert triggerers.of(triggerers.harvest(ASSET)) == triggerers.of(staying)


def test_the_witness_sees_the_effects_of_a_second_leader() -> None:
    first, second = UUID(int=1), UUID(int=2)
    led = [("take over", first), ("mark", first), ("purge", first)]
    taken_over = [*led, ("take over", second), ("mark", second)]
    assert effects_of_others(taken_over) == []
    assert len(effects_of_others([*taken_over, ("purge", first)])) == 1
    assert len(effects_of_others([*taken_over, ("mark", first), ("mark", second)])) == 1
    assert len(effects_of_others([*taken_over, ("take over", first)])) == 1
    assert len(effects_of_others(led[1:])) == 2
