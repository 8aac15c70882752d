"""The three networks that listen to a reference clip and turn it into a voice."""
