"""What each operation does with what it is asked and what it answers: ids, pages, payloads, their memory."""
