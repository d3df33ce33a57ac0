"""The envelope of messages between processes: frames, sessions, text."""
