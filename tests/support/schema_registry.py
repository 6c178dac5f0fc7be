"""A small schema registry: the parts of Confluent's REST interface that its clients use, with everything in memory.

Confluent's own server is in none of the package registries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4


class Registry:
    """Schemas by id; subjects with their versions. `requests` are those that clients have made."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []

    def answer(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        self.requests.append(f"{method} {path}")
        match method, *(unquote(part) for part in path.strip("/").split("/")):
            case "POST", "subjects", subject, "versions":
                return self.register(subject, body)
            case "POST", "subjects", subject:
                found = self.find(body)
                return found if found is not None and found["id"] in self.subjects.get(subject, ()) else None
            case "GET", "subjects", subject, "versions", "latest" if self.subjects.get(subject):
                versions = self.subjects[subject]
                return self.schemas[versions[-1] - 1] | {"subject": subject, "version": len(versions)}
            case "GET", "schemas", "ids", number if int(number) <= len(self.schemas):
                return self.schemas[int(number) - 1]
            case "GET", "schemas", "guids", guid:
                return next((schema for schema in self.schemas if schema["guid"] == guid), None)
        return None

    def register(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        schema = self.find(body)
        if schema is None:
            schema = {
                "id": len(self.schemas) + 1,
                "guid": str(uuid4()),
                "schemaType": body.get("schemaType", "AVRO"),
                "schema": body["schema"],
            }
            self.schemas.append(schema)
        versions = self.subjects.setdefault(subject, [])
        if schema["id"] not in versions:
            versions.append(schema["id"])
        return schema | {"subject": subject, "version": versions.index(schema["id"]) + 1}

    def find(self, body: dict[str, Any]) -> dict[str, Any] | None:
        wanted = (body.get("schemaType", "AVRO"), body["schema"])
        return next((schema for schema in self.schemas if (schema["schemaType"], schema["schema"]) == wanted), None)


@contextmanager
def schema_registry() -> Iterator[tuple[str, Registry]]:
    """Serve a registry on the loopback; its URL."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond({})

        def do_POST(self) -> None:
            self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def respond(self, body: dict[str, Any]) -> None:
            answer = registry.answer(self.command, urlsplit(self.path).path, body)
            missing = {"error_code": 40403, "message": "not found"}
            content = json.dumps(missing if answer is None else answer).encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", registry
        finally:
            server.shutdown()
            thread.join()
