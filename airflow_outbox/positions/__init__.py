"""Positions: where a consumer group goes on when it moves to another cluster."""
