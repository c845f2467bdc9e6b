"""How jobs get to who does them: policies, claims, parked polls, deliveries, and the fast path."""
