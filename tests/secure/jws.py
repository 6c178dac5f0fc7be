"""Tokens that Kafka's validator for tests takes: not signed."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path


def unsigned(user: str, life: float) -> tuple[str, float]:
    """A token for this user, and when it expires: in `life` seconds."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 1, "exp": now + life})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""]), now + life


def source(config: str) -> tuple[str, float]:
    """An oauth_cb, by `user life folder`: it leaves tokens in the folder, and fails while it finds `away` there."""
    user, life, name = config.split()
    folder = Path(name)
    if (folder / "away").exists():
        raise RuntimeError("the issuer is away")
    token, expires_at = unsigned(user, float(life))
    (folder / f"{time.time_ns()}.token").write_text(token)
    return token, expires_at
