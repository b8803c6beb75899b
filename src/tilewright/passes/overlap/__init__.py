"""Passes that overlap copies and computation: rings, stages, skew, roles, ping-pong."""
