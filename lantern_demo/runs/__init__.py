"""Runs: loading, decoding and comparing; statistics and the record."""
