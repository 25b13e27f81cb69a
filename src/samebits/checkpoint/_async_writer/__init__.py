"""Commits made durable by a process of their own while the run goes on."""
