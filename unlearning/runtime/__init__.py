"""The host: files, memory, garbage collection, devices, and values as JSON."""
