"""Stochastic rounding on the CPU."""
