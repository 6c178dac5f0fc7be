"""Numbers that options take: none that Postgres, Kafka or the clock can't hold."""

from __future__ import annotations

import math
from typing import Any

import click

_LARGEST = 2**63 - 1  # of Postgres' bigint, and of Kafka's offsets


class Whole(click.IntRange):
    """A whole number of at least `least`. `most` is the largest one that makes sense, which `--help` need not show."""

    def __init__(self, least: int, *, most: int = _LARGEST) -> None:
        super().__init__(least)
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > self.most:
            self.fail(f"{number} is too large: give {self.most} at most", param, ctx)
        return number


class Finite(click.FloatRange):
    """A number in a range, and a number it is: neither `nan` nor `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number that can be counted with", param, ctx)
        return number
