"""Medusa: one small head for each place after the newest token."""
