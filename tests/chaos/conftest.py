def pytest_configure(config):
    config.addinivalue_line("markers", "slow: only in the full check")
