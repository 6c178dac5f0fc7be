"""The engine: elects a leader, marks, publishes and purges. It imports neither Airflow nor Spark."""
