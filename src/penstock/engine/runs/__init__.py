"""Instances whose body is code: their journal, their children and what is sent to them."""
