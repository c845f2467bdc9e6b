// A definition comes from a file and goes into one, byte for byte.
import { useRef, useState } from "react";
import { JsonProblem, parse } from "./json";

const FILE_MAX_BYTES = 4 * 1024 * 1024;

export function ImportButton({ take, say }: { take: (text: string) => void; say: (text: string) => void }) {
  const input = useRef<HTMLInputElement>(null);
  const [wrong, setWrong] = useState<string>();
  const read = async (file: File) => {
    const reason = await refused(file, take);
    setWrong(reason);
    say(reason ?? `Opened ${file.name}`);
  };
  return (
    <>
      {wrong && <span className="wrong">{wrong}</span>}
      <input
        ref={input}
        type="file"
        accept=".json,application/json"
        hidden
        onChange={(event) => {
          const file = event.target.files?.[0];
          event.target.value = "";
          if (file) void read(file);
        }}
      />
      <button type="button" className="btn" onClick={() => input.current?.click()}>
        Import
      </button>
    </>
  );
}

async function refused(file: File, take: (text: string) => void): Promise<string | undefined> {
  if (file.size > FILE_MAX_BYTES) return `${file.name} has more than ${FILE_MAX_BYTES / 1024 / 1024} MiB`;
  try {
    // Byte for byte: what is no UTF-8 is refused, a byte order mark stays.
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
    parse(text);
    take(text);
    return undefined;
  } catch (error) {
    return `${file.name} is no JSON${error instanceof JsonProblem ? `: ${error.message}` : ""}`;
  }
}

export function download(text: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: name.endsWith(".json") ? "application/json" : "text/plain" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
