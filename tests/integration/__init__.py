"""Tests of real processes: servers, clients, TLS, kills. Slow; run by name (make test-slow)."""
