"""The shop's one table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order, which is paid or is not."""

    state = models.CharField(max_length=20)

    class Meta:
        app_label = "django_shop"
