"""The wire: tensors as bytes (``codec``), and the messages that carry them, each checked when it is read.

Nothing here knows senders or purposes; both sides import it.
"""
