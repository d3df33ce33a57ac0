"""The server's process: admission of parties, orders and answers, training in sessions."""
