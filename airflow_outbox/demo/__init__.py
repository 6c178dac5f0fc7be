"""The demo, and the real servers for it, the tests and the benchmarks. Nothing else in airflow_outbox imports this."""
