"""Runs the project: three requests, of which the second fails, and a line of JSON with their answers."""

from __future__ import annotations

import json

import django
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client

from airflow_outbox import stash
from airflow_outbox.errors import AutocommitError


def main() -> None:
    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)
    client = Client(raise_request_exception=False)
    answers = [client.post(f"/pay/{number}") for number in ("1", "2?fail", "1")]
    told = [answer.json()["ticket"] if answer.status_code == 200 else answer.status_code for answer in answers]
    for lent in (connection, connections["default"]):
        try:
            stash(lent, [], autocommit="refuse")
        except AutocommitError as error:
            told.append(type(error).__name__)
    print(json.dumps(told))


main()
