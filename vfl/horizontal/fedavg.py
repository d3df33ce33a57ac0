"""FedAvg and FedSGD.

McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data": clients train
locally, the server averages. FedSGD is its special case of one gradient over all of a client's samples.
"""

from vfl.horizontal.algorithm import FederatedAlgorithm


class FedAvg(FederatedAlgorithm):
    """w += eta_g sum_i p_i (w_i - w), with p_i = n_i / n over the reporting clients, over all, or equal."""


class FedSGD(FederatedAlgorithm):
    """One full-batch gradient g_i per client and w -= eta sum_i p_i g_i, for a server rate of 1.

    The client takes the step and sends the difference -eta g_i: the same numbers on the wire, and the learning
    rate's schedule stays where it is for all others.
    """

    one_step_full_batch = True
