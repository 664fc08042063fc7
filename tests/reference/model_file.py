"""Where the scripts of this folder find the real model unless --model says otherwise: scripts/fetch-model puts it there."""

import os

DEFAULT_MODEL = os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"),
    "longspan/models/SmolLM2-135M-Instruct.Q4_1.gguf",
)
