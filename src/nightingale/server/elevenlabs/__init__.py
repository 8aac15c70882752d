"""ElevenLabs' API: two WebSockets, text to speech over HTTP, and the list of voices."""
