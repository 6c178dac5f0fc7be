"""The project's settings; the environment names the database."""

from __future__ import annotations

import os

from psycopg.conninfo import conninfo_to_dict

_given = conninfo_to_dict(os.environ["SHOP_DATABASE"])

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "support.django_shop.urls"
INSTALLED_APPS = ["support.django_shop"]
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _given["dbname"],
        "USER": _given["user"],
        "PASSWORD": _given.get("password", ""),
        "HOST": _given["host"],
        "PORT": _given["port"],
        "ATOMIC_REQUESTS": True,
    }
}
