"""The contenders that publish an outbox's records: this project and its peers, with their shared servers and judge.

A *contender* is one way to publish. A *turn* is one run of it, over a database and a topic of its own on the shared
servers. A turn is judged by what consumers that read committed see (`sightings`), never by what the contender says.
There is one file a contender; `rows` are the records to publish, `verdicts` the results.
"""
