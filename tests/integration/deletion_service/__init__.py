"""Tests of the deletion service and its command over real gRPC on this machine; fast."""
