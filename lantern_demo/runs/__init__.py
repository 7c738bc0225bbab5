"""Runs: what loads, encodes and decodes, the race, what fits the machine, the price, statistics and the record."""
