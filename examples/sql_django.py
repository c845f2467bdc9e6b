"""Orders of a Django application: the row of an order and the start of its workflow are one transaction.

In a project of yours the settings, the model and the function stand in modules of their own; `place` is what a view
calls. `penstock migrate --may-start shop` lets the role of the application start workflows, once.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.db import connection, models, transaction

from penstock.client.sql import Requests

PENSTOCK_SCHEMA = os.environ.get("PENSTOCK_SCHEMA", "penstock")

if not settings.configured:
    settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": os.environ.get("PGDATABASE", "shop"),
                "HOST": os.environ.get("PGHOST", "localhost"),
                "PORT": os.environ.get("PGPORT", "5432"),
                "USER": os.environ.get("PGUSER", "shop"),
            }
        },
    )
    django.setup()


class Order(models.Model):
    """An order, and the instance of the workflow that carries it out."""

    id = models.IntegerField(primary_key=True)
    instance = models.TextField()

    class Meta:
        app_label = "shop"
        db_table = "django_orders"


@transaction.atomic
def place(id: int) -> Order:
    """Insert an order and start its workflow: both, or neither."""
    instance = Requests(connection, schema=PENSTOCK_SCHEMA).start("order", {"order": id}, instance_key=f"order-{id}")
    return Order.objects.create(id=id, instance=instance)
