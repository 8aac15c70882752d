"""OpenAI's audio API: speech, captions, models and voices."""
