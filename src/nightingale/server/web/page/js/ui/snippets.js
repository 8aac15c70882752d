// The current request as a curl command or as Python.

const OPENAI_FIELDS = ["model", "voice", "input", "speed"];
const FILE = "speech.wav";

/** request: the body for POST /v1/audio/speech; url: its URL; needsKey: whether the server requires a key. */
export function asCurl(request, url, needsKey) {
  const body = JSON.stringify({ ...request, response_format: "wav" }, null, 2);
  return [
    `curl ${shellQuote(url)}`,
    "-H 'Content-Type: application/json'",
    ...(needsKey ? ['-H "Authorization: Bearer $NIGHTINGALE_API_KEY"'] : []),
    `-d ${shellQuote(body)}`,
    `--output ${FILE}`,
  ].join(" \\\n  ");
}

export function asPython(request, url, needsKey) {
  const ownFields = Object.entries(request).filter(([name]) => !OPENAI_FIELDS.includes(name));
  const extras = ownFields.map(([name, value]) => `"${name}": ${JSON.stringify(value)}`).join(", ");
  const fields = [
    ...OPENAI_FIELDS.filter((name) => name in request).map(
      (name) => `${name}=${JSON.stringify(request[name])}`,
    ),
    'response_format="wav"',
    ...(ownFields.length ? [`extra_body={${extras}}`] : []),
  ];
  const key = needsKey ? 'os.environ["NIGHTINGALE_API_KEY"]' : '"not needed"';
  return [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(url.replace(/\/audio\/speech$/, ""))}, api_key=${key})`,
    "with client.audio.speech.with_streaming_response.create(",
    ...fields.map((field) => `    ${field},`),
    ") as response:",
    `    response.stream_to_file("${FILE}")`,
  ].join("\n");
}

function shellQuote(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
