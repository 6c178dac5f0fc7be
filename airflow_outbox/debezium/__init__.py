"""Debezium's outbox tables: a connector's configuration as a trigger that stashes what its event router would send."""
