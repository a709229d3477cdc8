"""An update on one minibatch: passes of the policy, the loss, the optimizer."""
