"""Kafka's client errors in words that say what to do, and a filter that repeats each only now and then."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException

from airflow_outbox.errors import KafkaError

# Under Python 3.11 the client raises KafkaError itself where it means a KafkaException, and its types deny that this is
# an exception: `except Exception` does not catch it.
_RAISED_REASON = cast("type[Exception]", BrokerError)
CLIENT_ERRORS = (KafkaException, _RAISED_REASON, SystemError)
"""Errors that a call to the client may raise while it serves callbacks. A fatal error during a callback arrives as the
cause of a SystemError.
"""


def raised(error: Exception) -> BrokerError:
    """Return the client's own error inside an exception that a call to it raised."""
    cause: object = error.__cause__ or error.__context__ if isinstance(error, SystemError) else error
    if isinstance(cause, BrokerError):
        return cause
    if isinstance(cause, KafkaException):
        reason: BrokerError = cause.args[0]
        return reason
    return BrokerError(BrokerError._FATAL, str(error), True)


REFUSALS: tuple[type[Exception], ...] = (KafkaException, _RAISED_REASON, ValueError, TypeError)
"""Errors that making a client may raise."""
_UNREACHED = (BrokerError._ALL_BROKERS_DOWN, BrokerError._TRANSPORT, BrokerError._RESOLVE)
_REPEAT_INTERVAL = 10.0
_MOST_KEPT = 1000
_PASSING_DETAIL = re.compile(
    r" \(after \d+ms in state [^()]*(?:\([^()]*\)[^()]*)*\)|^(?:GroupCoordinator: )?(?:\w+://)?\S+:\d+(?:/\w+)?: "
)
_UNKNOWN_SETTING = re.compile(r'No such configuration property: "([^"]*)"')
_CLIENTS_LINE = re.compile(r"[A-Z_]+ \[[^\]]*#(?:producer|consumer)-\d+\]")
_ACLS = "`airflow-outbox check --acls table` lists what the harvester needs"


def explained(error: BrokerError, kafka: Mapping[str, Any]) -> str:
    """Return a complaint with what to do about it. `kafka` holds the settings of the client that complains."""
    reason = reason_of(error)
    servers = kafka.get("bootstrap.servers")
    if error.code() == BrokerError._AUTHENTICATION:
        return f"Kafka refuses the login at {servers}: {_why_no_token(kafka) or reason}. {_remedy_of_login(kafka)}"
    if error.code() == BrokerError._SSL:
        return (
            f"no TLS connection to Kafka at {servers}: {reason}. "
            "Check security.protocol and ssl.ca.location, and that the broker's certificate names its host"
        )
    if error.code() in _UNREACHED:
        return unreached(reason, kafka)
    return f"Kafka: {reason}"


def unreached(reason: str | None, kafka: Mapping[str, Any]) -> str:
    """Return the error text for when no broker answers."""
    return (
        f"can't reach Kafka at {kafka.get('bootstrap.servers')}: {reason}. "
        "Check bootstrap.servers and security.protocol, and that the brokers are up"
    )


def reason_of(error: BrokerError) -> str:
    """Return the complaint without the connection and its duration, so that it is the same each time."""
    return _PASSING_DETAIL.sub("", error.str() or error.name())


def refused_settings(error: Exception, kafka: Mapping[str, Any], *, remedy: str) -> KafkaError:
    """Return the error for a client that could not be made from its settings, or got no token in time."""
    reason = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(reason, BrokerError) and reason.code() == BrokerError.SASL_AUTHENTICATION_FAILED:
        why = _why_no_token(kafka) or "none came in time"
        return KafkaError(
            f"no token for the login to Kafka at {kafka.get('bootstrap.servers')}: {why}. {_remedy_of_login(kafka)}"
        )
    said = " ".join((reason.str() if isinstance(reason, BrokerError) else str(reason)).split()).rstrip(".")
    if (unknown := _UNKNOWN_SETTING.search(said)) is not None:
        return KafkaError(f"Kafka's client knows no setting {unknown[1]}. {remedy}: librdkafka's documentation has all")
    return KafkaError(f"Kafka's client refuses its settings: {said}. {remedy}")


def is_about_unused_group(error: BrokerError) -> bool:
    """Whether a consumer without a group may ignore this error: the client wants a group named, and the user may not
    ask for its coordinator.
    """
    return error.code() == BrokerError.GROUP_AUTHORIZATION_FAILED


def is_about_login(error: BrokerError) -> bool:
    """Whether nothing improves before the client's or the broker's configuration does."""
    return error.code() in (BrokerError._AUTHENTICATION, BrokerError._SSL)


def not_allowed(operation: str, resource: str, name: str) -> str:
    """Return the error text for a permission that Kafka's ACLs don't give."""
    return f"Kafka does not allow {operation} on {resource} {name}. {_ACLS}"


def clocks_differ(topic: str) -> str:
    """Return the error text for when a broker finds a topic's records too far from its own time."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="minutes")
    return (
        f"Kafka refuses the time of records for topic {topic}: the clocks of the harvester, which says {now}, and "
        "of the broker differ by more than the topic's message.timestamp.after.max.ms or "
        "message.timestamp.before.max.ms. Set the clock that is wrong"
    )


class NowAndThen:
    """Lets the same text through again only after a while, unless there are too many different texts."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def passes(self, text: str) -> bool:
        now = time.monotonic()
        if now < self._due.get(text, now):
            return False
        if len(self._due) >= _MOST_KEPT:
            self._due.clear()
        self._due[text] = now + _REPEAT_INTERVAL
        return True


class RepeatedWarnings(logging.Filter):
    """Keeps a log short: Kafka's client repeats a warning at every attempt.

    Unless it `tells_retries`, it leaves out that the client tries something again by itself, as on many starts while a
    coordinator loads. If that does not end, an error says so.
    """

    def __init__(self, *, tells_retries: bool) -> None:
        super().__init__()
        self._tells_retries = tells_retries
        self._now_and_then = NowAndThen()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = re.sub(r"\d+", "", record.getMessage())
        is_needless = record.levelno == logging.WARNING and text.endswith(": retrying") and not self._tells_retries
        return not is_needless and self._now_and_then.passes(text)


def is_not_the_clients(record: logging.LogRecord) -> bool:
    """Whether a line is our own: for a terminal, to which an error of ours says once what the client tries again."""
    return _CLIENTS_LINE.match(record.getMessage()) is None


def _why_no_token(kafka: Mapping[str, Any]) -> str | None:
    reason: str | None = getattr(kafka.get("oauth_cb"), "failure", None)
    return reason


def _remedy_of_login(kafka: Mapping[str, Any]) -> str:
    if "oauth_cb" in kafka:
        return "Check oauth_cb, and where it gets its tokens"
    return "Check sasl.mechanism, sasl.username and sasl.password"
