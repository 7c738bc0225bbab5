"""Runs: loading, encoding and decoding, the race, the choice of draft trees, changed tokens,
statistics and the record.
"""
