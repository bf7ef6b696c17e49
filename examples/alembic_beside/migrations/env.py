"""Alembic's environment of the application: two hooks leave the tables of locus-store alone."""

import os

from alembic import context
from models import Base
from sqlalchemy import create_engine

from locus_store.sql.migrate import include_name, include_object

engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
with engine.connect() as connection:
    context.configure(
        connection,
        target_metadata=Base.metadata,
        include_object=include_object,
        include_name=include_name,
    )
    with context.begin_transaction():
        context.run_migrations()
