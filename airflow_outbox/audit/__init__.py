"""The audit: do consumers of the topics see exactly what was stashed?

It compares a table of what was stashed (the outbox's columns and ids) with the committed records of the topics. It
knows nothing of how they get from one to the other.

*Matching rows and records.* Records carry no ids, so they are matched by content. Within a *lane* (a topic and a key,
and the partition where a row asks for one), a row and a record match when their *content* is equal: value and headers,
in their order, byte by byte. Equal records of one lane can't be told apart: they are counted. The faults:

- *missing*: a content arrived less often than it was stashed. *Doubled*: more often. *Foreign*: it was never stashed.
- *reordered*: within a lane, a row's record comes behind that of a row with a higher id, or lies in another partition
  than the one before it by id. Only records with a certain row count: their content was stashed once
  (the first counts), or arrived as often as it was stashed (each counts in its turn).
- *torn*: some records of a source transaction are there and some are missing. The records of two transactions may be
  interleaved, as their ids are when the transactions ran at once.

*No faults.* A row may be absent if it still waits in the outbox, is parked, or may have been removed by Kafka since
(`topics.horizons`). A record may be extra if it may have been stashed after the rows were read (`run`).

*Bounds.* Rows and records are read once, reduced to fingerprints of a few dozen bytes and sorted on disk
(`comparison`). Memory does not grow with them.
"""
