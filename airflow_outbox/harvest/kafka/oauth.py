"""Expiring tokens (SASL/OAUTHBEARER): where the Kafka clients in this process get them from.

librdkafka asks `oauth_cb` for a token when a client is made, and again after 80% of a token's life. It asks in its own
thread, which may wait. The caller that makes a client waits with it, for at most ten seconds.

Tokens are *fetched* by the user's function, named by a dotted path, or they are *relayed*: a supervisor fetches them
and sends them over stdin. It can do what this process can't, such as reading Airflow's connections.
"""

from __future__ import annotations

import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Self, TypeAlias

from airflow_outbox.errors import ConfigurationError, KafkaError

_PART_OF_LIFE = 0.8
_PATIENCE = 9.0  # below the ten seconds that making a client waits
_LAST_MOMENT = 1.0

TokenTuple: TypeAlias = tuple[str, float, str, dict[str, str]]
Callback: TypeAlias = Callable[[str], Any]


class TokenError(KafkaError):
    """No token for Kafka could be had. Check oauth_cb, and what it gets its tokens from."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token, when it expires and when to replace it (both in seconds since the epoch)."""

    text: str = field(repr=False)
    expires_at: float
    replace_at: float
    principal: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    _came_at: float = field(default_factory=time.monotonic)
    _seconds: float = math.inf  # how long it was valid when it came

    @property
    def expires_in(self) -> float:
        """Return in how many seconds it expires, at the latest: the clock may have been set since it came."""
        return min(self.expires_at - time.time(), self._came_at + self._seconds - time.monotonic())

    @property
    def replace_in(self) -> float:
        """Return in how many seconds to replace it, likewise."""
        left = self._came_at + _PART_OF_LIFE * self._seconds - time.monotonic()
        return min(self.replace_at - time.time(), left)

    @classmethod
    def of(cls, answer: object) -> Self:
        """Return the token from an `oauth_cb`'s answer: `(token, expires_at[, principal[, extensions]])`.

        Raises TokenError, which does not show it.
        """
        principal: Any = ""
        extensions: Any = {}
        match answer:
            case (str(text), int() | float() as expires_at):
                pass
            case (str(text), int() | float() as expires_at, principal):
                pass
            case (str(text), int() | float() as expires_at, principal, extensions):
                pass
            case _:
                raise TokenError("oauth_cb must return (token, expires_at[, principal[, extensions]])")
        now = time.time()
        if expires_at <= now:
            raise TokenError(f"the new token expired {now - expires_at:.0f} s ago by this machine's clock")
        replace_at = now + _PART_OF_LIFE * (expires_at - now)
        return cls(
            text, float(expires_at), replace_at, str(principal or ""), dict(extensions or {}), _seconds=expires_at - now
        )

    @classmethod
    def parse(cls, line: Mapping[str, Any]) -> Self:
        """Return the token from a line that `as_line` made. Raises TokenError."""
        answer = (line.get("token"), line.get("expires_at"), line.get("principal", ""), line.get("extensions", {}))
        return cls.of(answer)

    def as_line(self) -> str:
        """Return the token as a line of JSON."""
        return json.dumps(
            {
                "token": self.text,
                "expires_at": self.expires_at,
                "principal": self.principal,
                "extensions": dict(self.extensions),
            }
        )

    def as_tuple(self) -> TokenTuple:
        """Return the token as Kafka's client takes it."""
        return self.text, self.expires_at, self.principal, dict(self.extensions)


def fetch_token(callback: Callback, config: str) -> Token:
    """Ask the user's function for a token. Raises TokenError, whatever that function raises."""
    try:
        answer = callback(config)
    except Exception as error:
        raise TokenError(f"oauth_cb raised {error!r}") from error
    return Token.of(answer)


class TokenSource(ABC):
    """An `oauth_cb` for all the clients of this process."""

    def __init__(self) -> None:
        self.failure: str | None = None
        """Why there is no new token, while there is none."""
        self.on_failure: Callable[[str], None] = _ignore
        """Called, in any thread, with each failure to get a token."""

    @abstractmethod
    def __call__(self, config: str | None) -> TokenTuple:
        """Return the newest token. Raises TokenError when none is valid."""

    def _failed(self, reason: str) -> None:
        self.failure = reason
        self.on_failure(reason)


class FetchedTokens(TokenSource):
    """Tokens from the user's function. One serves all clients until it is to be replaced."""

    def __init__(self, callback: Callback) -> None:
        super().__init__()
        self.path: str | None = None
        """The function's dotted path, where it was named."""
        self._callback = callback
        self._token: Token | None = None
        self._lock = threading.Lock()

    @classmethod
    def named(cls, path: str) -> Self:
        """Return tokens of the function at a dotted path. Raises ConfigurationError."""
        try:
            callback = resolve_name(path)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(
                f"can't import the function {path}: {error}. Name one that can be imported here"
            ) from error
        if not callable(callback):
            raise ConfigurationError(f"{path} is not a function. Name one that returns a token")
        tokens = cls(callback)
        tokens.path = path
        return tokens

    def __call__(self, config: str | None) -> TokenTuple:
        with self._lock:
            if self._token is None or self._token.replace_in <= 0:
                try:
                    self._token = fetch_token(self._callback, config or "")
                    self.failure = None
                except TokenError as error:
                    self._failed(str(error))
                    if self._token is None or self._token.expires_in <= _LAST_MOMENT:
                        raise
            return self._token.as_tuple()


class RelayedTokens(TokenSource):
    """Tokens from a supervisor, each a line of JSON; or `{"token_error": "…"}` when it can't get one."""

    def __init__(self) -> None:
        super().__init__()
        self._token: Token | None = None
        self._arrival = threading.Condition()

    def take(self, line: bytes) -> None:
        """Take a line in."""
        try:
            given = json.loads(line)
            if "token_error" in given:
                self._failed(str(given["token_error"]))
                return
            token = Token.parse(given)
        except (ValueError, TypeError, AttributeError):
            self._failed("a line of stdin is neither a token nor a token_error")
            return
        except TokenError as error:
            self._failed(str(error))
            return
        with self._arrival:
            self._token, self.failure = token, None
            self._arrival.notify_all()

    def __call__(self, config: str | None) -> TokenTuple:
        """Return the newest token. Waits for the next when it is to be replaced, or when there is none yet."""
        deadline = time.monotonic() + _PATIENCE
        with self._arrival:
            while (token := self._token) is None or token.replace_in <= 0:
                left = deadline - time.monotonic()
                if token is not None:
                    left = min(left, token.expires_in - _LAST_MOMENT)
                if left <= 0:
                    if token is None or token.expires_in <= 0:
                        raise TokenError(self.failure)
                    return token.as_tuple()
                self._arrival.wait(left)
            return token.as_tuple()


def _ignore(_: str) -> None:
    pass
