"""Timings, compared as ratios or against stated bounds within one run; never asserted by the test suite."""
