"""What an operator needs beside the federation: backups, checks of a host, metrics, logs, supervision."""
