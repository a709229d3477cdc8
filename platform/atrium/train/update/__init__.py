"""One update on one minibatch, top to bottom: passes of the policy, the loss, the optimiser."""
