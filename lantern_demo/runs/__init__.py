"""Runs: what loads, encodes and decodes, the race, what fits the machine, what methods changed, statistics and the record."""
