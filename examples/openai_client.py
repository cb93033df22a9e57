"""`parlay serve smollm2` with OpenAI's client (`pip install openai`): `python examples/openai_client.py [URL]`."""

import sys

from openai import OpenAI


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=url, api_key="none")  # or one of the server's keys
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Name five rivers."}], max_tokens=200, stream=True
    )
    for event in stream:
        if event.choices:
            print(event.choices[0].delta.content or "", end="", flush=True)
            if event.choices[0].finish_reason == "length":
                print("\n(cut off at max_tokens)", end="")
    print()


if __name__ == "__main__":
    main()
