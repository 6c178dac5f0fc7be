"""The door to Postgres: connections, the tables of an outbox, and the statements that read and write them."""
