"""The Outbox page inside Airflow's UI: what happens, why, which record is stuck, and how to free it.

- `plugin` mounts it. It is loaded in every process of Airflow, so it imports little
- `airflow` is the only module that knows Airflow's insides
- `access` says who may; every route carries one of its checks
- `pool` asks the outboxes' databases, so that a silent one delays nobody
- `pages` and `rendering` make the pages; `charts` says what is drawn

All that the pages show comes from `operate`, which knows nothing of Airflow.
"""
