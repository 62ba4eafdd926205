"""The fixture that the Python client's own tests expect and do not ship: a client of the daemon under test."""

import os

import pytest_asyncio

from queen import Queen


@pytest_asyncio.fixture
async def client():
    queen = Queen(os.environ["QUEEN_SERVER_URL"])
    yield queen
    await queen.close()
