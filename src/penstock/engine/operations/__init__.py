"""What serves each operation of `penstock.api`: `table` has all of them."""
