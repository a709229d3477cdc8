"""Records what verl's own losses make of fixed tensors, in the environment of .ci/verl/requirements.txt.

`PYTHONPATH=platform .venv-verl/bin/python tests/peers/record_verl.py` writes tests/peers/vectors/verl.json.
"""

from __future__ import annotations

from recorded_vectors import write
from test_verl import GLOBAL, OWN, actor, gradient, tensors


def main():
    names = {
        "old_log_prob": "old_logprob_BT",
        "log_prob": "logprob_BT",
        "advantages": "advantage_BT",
        "response_mask": "mask_BT",
    }
    write(
        "verl",
        ("verl", "torch"),
        {names[name]: tensor for name, tensor in tensors().items()},
        {
            method: gradient(name, mode, actor(GLOBAL, **changes))[0]
            for method, (name, mode, changes) in OWN.items()
        },
    )


if __name__ == "__main__":
    main()
