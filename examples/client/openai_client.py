"""Talks to a running server with the official client: pip install openai; guesthouse serve smollm2."""
import sys

from openai import OpenAI

base = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = OpenAI(base_url=base + "/v1", api_key="none")
model = client.models.list().data[0].id

answer = client.completions.create(model=model, prompt="The capital of France is", max_tokens=8, temperature=0)
print(answer.choices[0].text)

stream = client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": "Name three colors."}], max_tokens=32, temperature=0, stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
