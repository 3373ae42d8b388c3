# SPDX-License-Identifier: Apache-2.0
"""A process that does what a test tells it: one Python statement a line on stdin, one JSON value a line on stdout."""

import json
import sys

space: dict[str, object] = {}
for line in sys.stdin:
    space["answer"] = None
    exec(line, space)
    print(json.dumps(space["answer"]), flush=True)
