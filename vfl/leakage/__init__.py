"""What leaks: attacks by a curious owner or server on what training lets it see, each beside a control of pure chance.

`estimate` measures, `gradients` infers labels from gradients, `embeddings` infers labels and features from embeddings.
They are functions of arrays; `parties.audit` gives them what an owner of a run really has.
"""
