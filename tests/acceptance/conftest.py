import pytest, redis, os
@pytest.fixture
def server_url():
    url="redis://127.0.0.1:6399/0"
    redis.Redis.from_url(url).flushall()
    return url
