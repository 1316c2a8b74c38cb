"""Every test of the store runs on SQLite and on a real PostgreSQL."""

import importlib.util
import itertools
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("store_postgres", Path(__file__).with_name("postgres.py"))
assert _spec and _spec.loader
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_server():
    with _module.postgres() as address:
        yield address


@pytest.fixture
def postgres_url(postgres_server):
    """The URL of a new, empty database."""
    import psycopg

    name = f"store_{next(_numbers)}"
    with psycopg.connect(f"{postgres_server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{postgres_server}/{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request, tmp_path):
    """Where a store is kept: each test sees both kinds."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return f"sqlite:///{tmp_path}/saved.db"


@pytest.fixture
def store(url):
    from crosszone.store import open_store

    with open_store(url) as opened:
        yield opened
