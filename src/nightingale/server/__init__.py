"""HTTP and socket server for the engine: OpenAI, ElevenLabs, Wyoming and our own WebSocket protocol."""
