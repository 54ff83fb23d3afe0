"""The officer's console: the deletion service's requests, federation and register as pages in a browser.

It runs on the officer's own machine and speaks to the service by gRPC with the caller's own certificate, so it
holds no authority of its own: what a caller may not do, the service refuses. Import `run_console` and `Settings`
from `server.console.launch`; this package imports the API's client, never the ledger's database.
"""
