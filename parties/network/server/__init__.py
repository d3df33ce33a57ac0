"""The server's process: who is let in, orders and answers, training in sessions."""
