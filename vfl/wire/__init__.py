"""What travels: tensors as bytes (``codec``), and the messages that carry them, each checked when it is read.

Nothing here knows who sends or why; both sides import it.
"""
