// A definition comes from a file, byte for byte.
import { useRef, useState } from "react";
import { JsonProblem, parse } from "../modeller/json";

const FILE_MAX_BYTES = 4 * 1024 * 1024;

export interface TextFile {
  name: string;
  text: string;
}

interface Props {
  children: string;
  take: (file: TextFile) => void;
  /** Why it could not be read, which is shown, too. */
  refused?: (reason: string) => void;
}

export function FileButton({ children, take, refused }: Props) {
  const input = useRef<HTMLInputElement>(null);
  const [wrong, setWrong] = useState<string>();
  const choose = async (file: File) => {
    const read = await readFile(file);
    setWrong(typeof read === "string" ? read : undefined);
    if (typeof read === "string") refused?.(read);
    else take(read);
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
          if (file) void choose(file);
        }}
      />
      <button type="button" className="btn" onClick={() => input.current?.click()}>
        {children}
      </button>
    </>
  );
}

/** What is in it, or why it can't be read. */
async function readFile(file: File): Promise<TextFile | string> {
  if (file.size > FILE_MAX_BYTES) return `${file.name} has more than ${FILE_MAX_BYTES / 1024 / 1024} MiB`;
  try {
    // Byte for byte: what is no UTF-8 is refused, a byte order mark stays.
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
    parse(text);
    return { name: file.name, text };
  } catch (error) {
    return `${file.name} is no JSON${error instanceof JsonProblem ? `: ${error.message}` : ""}`;
  }
}
