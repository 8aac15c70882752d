// The same request, as a line of shell or a few of Python.

const OPENAI_FIELDS = ["model", "voice", "input", "speed"];
const FILE = "speech.wav";

/** request: what POST /v1/audio/speech was given; url: its address; locked: whether the server wants a key. */
export function asCurl(request, url, locked) {
  const body = JSON.stringify({ ...request, response_format: "wav" }, null, 2);
  return [
    `curl ${shell(url)}`,
    "-H 'Content-Type: application/json'",
    ...(locked ? ['-H "Authorization: Bearer $NIGHTINGALE_API_KEY"'] : []),
    `-d ${shell(body)}`,
    `--output ${FILE}`,
  ].join(" \\\n  ");
}

export function asPython(request, url, locked) {
  const own = Object.entries(request).filter(([name]) => !OPENAI_FIELDS.includes(name));
  const extras = own.map(([name, value]) => `"${name}": ${JSON.stringify(value)}`).join(", ");
  const fields = [
    ...OPENAI_FIELDS.filter((name) => name in request).map(
      (name) => `${name}=${JSON.stringify(request[name])}`,
    ),
    'response_format="wav"',
    ...(own.length ? [`extra_body={${extras}}`] : []),
  ];
  const key = locked ? 'os.environ["NIGHTINGALE_API_KEY"]' : '"not needed"';
  return [
    ...(locked ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(url.replace(/\/audio\/speech$/, ""))}, api_key=${key})`,
    "with client.audio.speech.with_streaming_response.create(",
    ...fields.map((field) => `    ${field},`),
    ") as response:",
    `    response.stream_to_file("${FILE}")`,
  ].join("\n");
}

function shell(text) {
  return /^[\w:/.-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
