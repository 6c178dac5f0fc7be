"""Access to Postgres: connections, an outbox's tables, and the statements that read and write them."""
