"""What a user could take instead of us, measured on the same texts in the same call; each in its own venv."""
