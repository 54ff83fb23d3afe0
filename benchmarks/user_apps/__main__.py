"""`python -m benchmarks.user_apps`."""

from benchmarks.user_apps.table import main

main()
