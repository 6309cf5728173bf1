"""Work on several processes or machines through Ray (extra `scale`). Importing this loads nothing of Ray."""
