"""What people change about instances that are under way: one by one, in bulk, to another version."""
