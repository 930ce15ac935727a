"""HTTP: the JSON API, metrics and health behind FastAPI and uvicorn."""
