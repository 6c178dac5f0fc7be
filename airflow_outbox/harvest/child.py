"""Start the child process of `__main__`, small: `python -P …/child.py`.

As a script, and not with `-m`: that would first import the package, and with it asyncio, which loads OpenSSL. That
takes 5 MB, and nothing here uses it: libpq and librdkafka bring their own. Later imports, for example by an exporter
of traces, find it again.
"""

from __future__ import annotations

import os
import sys

_OPENSSL = ("ssl", "_hashlib")

if __name__ == "__main__":
    hidden = [name for name in _OPENSSL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # an import of None fails, as if it was missing
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look for some in all installed packages

    from airflow_outbox.harvest.__main__ import main

    for name in hidden:
        del sys.modules[name]
    main()
