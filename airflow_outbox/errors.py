"""Every error that a user can meet. A class's docstring is its default message; each message ends with what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager


class OutboxError(Exception):
    """The outbox could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((self.__class__.__doc__ or "").split()))


class ConfigurationError(OutboxError):
    """The configuration is not valid. Correct the named setting."""


class InvalidNameError(ConfigurationError):
    """The outbox's name is not usable.

    Give `table` or `schema.table`, in double quotes where it has other characters.
    """


class InvalidRecordError(OutboxError):
    """A record can't be stashed; nothing was written. Correct the named field.

    `record` is the record's place in the call, counted from 0; `field` is `topic`, `key`, `value`, `headers` or
    `partition`.
    """

    def __init__(self, *, record: int, field: str, problem: str) -> None:
        super().__init__(f"record {record}: {field}: {problem}; nothing was written")
        self.record = record
        self.field = field


class InvalidCloudEventError(OutboxError):
    """This can't be a CloudEvent. Correct the named attribute. `attribute` is its name."""

    def __init__(self, attribute: str, problem: str) -> None:
        super().__init__(f"{attribute}: {problem}")
        self.attribute = attribute


class OutboxMissingError(OutboxError):
    """The outbox's tables are not there. Run `airflow-outbox init`."""


class SchemaVersionError(OutboxError):
    """The outbox's tables are of another version of airflow-outbox.

    Run `airflow-outbox init`, or install that version.
    """


class UnsupportedConnectionError(OutboxError):
    """stash() takes a psycopg connection, a SQLAlchemy connection or session over psycopg or psycopg2, or a connection
    of Django to Postgres.
    """


class AutocommitWarning(UserWarning):
    """Records were stashed over a connection that commits each statement by itself. Open a transaction around them and
    the business rows, or give stash() `autocommit="allow"`.
    """


class AutocommitError(OutboxError):
    """The connection commits each statement by itself; nothing was written. Open a transaction around the records and
    the business rows.
    """


class InvalidTicketError(OutboxError):
    """This is not a ticket. Pass on what stash() returned, unchanged."""


class TicketRefusedError(OutboxError):
    """This outbox can't answer for the ticket. Ask the outbox, and the database, that the ticket comes from."""


class NoWatermarkError(OutboxError):
    """The outbox is harvested at least once, so nobody can tell which transactions are published.

    Set `delivery: exactly_once`.
    """


class ParkedError(OutboxError):
    """Records of the transaction are parked. Correct, retry or discard them: `airflow-outbox parked list` shows
    them."""


class RolledBackError(OutboxError):
    """The ticket's transaction was rolled back, so its records will never be published. Stash them again."""


class PostgresError(OutboxError):
    """Postgres refused or could not be reached. Check the data source, the role's privileges and the server's log."""


class PostgresUnreachableError(PostgresError):
    """Postgres could not be reached, or went away. Check the data source, and that the server is up."""


class LoginRefusedError(PostgresUnreachableError):
    """Postgres refused the login. Check the data source's user, password and database."""


class DataSourceError(PostgresError):
    """The data source can't be read. It is not shown, for there may be a password in it.

    Give `key=value` pairs with values in single quotes where they have spaces, or a URI with `@ : / ? # %` of user and
    password written as `%40 %3A %2F %3F %23 %25`.
    """

    def __init__(self, *, is_uri: bool) -> None:
        remedy = (
            "In a URI write @ : / ? # % of user and password as %40 %3A %2F %3F %23 %25"
            if is_uri
            else "Give key=value pairs, with values in single quotes where they have spaces, or a URI"
        )
        super().__init__(f"the data source is not a connection string that Postgres understands. {remedy}")


class KafkaError(OutboxError):
    """Kafka refused or could not be reached. Check bootstrap.servers, the credentials and the broker's log."""

    cluster: str | None = None
    """The one of several clusters that it is about; None where there is one."""


class FencedError(OutboxError):
    """Another view has taken over the shard: the fence row names it. This term is over."""


class TakeOverError(PostgresError):
    """The fence row stays locked. End the transaction that holds it; the error names its session."""


class LayoutChangedError(TakeOverError):
    """The outbox has another number of shards than when this member asked which it may lead."""


class HistoryError(OutboxError):
    """The database and the ledger do not share the history that was harvested.

    Nothing was purged or published. Find out what was restored, failed over, copied, deleted or recreated; then run
    `airflow-outbox adopt`. `difference` says what does not fit.
    """

    def __init__(self, difference: str) -> None:
        super().__init__(
            f"{difference}. Nothing was purged or published. Find out what was restored, failed over, copied, deleted "
            "or recreated. Then run `airflow-outbox adopt`; if this is a copy and the original is still harvested, run "
            "`airflow-outbox adopt --as-new-outbox` instead"
        )
        self.difference = difference


class PublishError(KafkaError):
    """Records could not be published; they stay in the outbox and are tried again."""


class RecordsRefusedError(PublishError):
    """Kafka refuses records; the others are tried without them.

    `records` are the ids of those that are known to be the reason, none when any of a batch may be it; `topics` are
    those of the refused ones, as far as they are known. `explained` tells whether the next look at the records will
    show which ones; `unclear`, whether the reason may also be Kafka itself.
    """

    def __init__(
        self,
        reason: str,
        *,
        records: Sequence[int] = (),
        topics: Collection[str] = (),
        explained: bool = False,
        unclear: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.records = records
        self.topics = topics
        self.explained = explained
        self.unclear = unclear


class UncertainCommitError(PublishError):
    """Nobody knows yet whether a batch was committed. The next view reads it from the ledger; nothing is lost or
    duplicated.
    """


class StuckTransactionsError(KafkaError):
    """Kafka can't end transactions of earlier producers, because too few brokers are up for one of their partitions.

    `transactional_ids` are theirs.
    """

    def __init__(self, transactional_ids: Sequence[str]) -> None:
        super().__init__(
            f"Kafka can't end a transaction of {' and '.join(transactional_ids)}: too few brokers are up for one of "
            "its partitions. Other transactional ids are used until then. Bring the brokers back"
        )
        self.transactional_ids = transactional_ids


class HarvestProcessError(OutboxError):
    """The harvesting process ended before its time. Its last error event says why."""


class JobError(OutboxError):
    """A Spark job could not commit; nothing was committed. Correct what the message names and run the job again."""


class StagingLostError(JobError):
    """Staged rows are gone, most likely by a crash of Postgres, which empties unlogged tables. Run the job again."""


class UnsupportedAirflowError(OutboxError):
    """airflow-outbox needs Apache Airflow 3. Upgrade Airflow, or run `airflow-outbox harvest` beside it."""


@contextmanager
def naming_cluster(cluster: str, *, of: int) -> Iterator[None]:
    """Name a cluster in errors, if there are several (`of`: how many)."""
    try:
        yield
    except HistoryError as error:
        if of == 1:
            raise
        raise HistoryError(f"cluster {cluster}: {error.difference}") from error
    except KafkaError as error:
        if of > 1 and error.cluster is None:
            error.args = (f"cluster {cluster}: {error}",)
            error.cluster = cluster
            if isinstance(error, RecordsRefusedError):
                error.reason = f"cluster {cluster}: {error.reason}"
        raise
