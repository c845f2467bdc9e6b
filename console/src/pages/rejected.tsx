// Messages that fit nothing of what a run waits for: shown with sender and field, dropped, or sent corrected.
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { engine, type RejectedMessage } from "../api/client";
import { Dialog } from "../parts/dialog";
import { At } from "../parts/time";
import { useCan } from "../session";
import { Force } from "./force";

export function Rejected({ id, messages, count }: { id: string; messages: RejectedMessage[]; count: number }) {
  return (
    <section className="attempts" aria-label="Rejected messages">
      <h2>Rejected messages</h2>
      <p className="mute note">They fit nothing of what the run waits for, so it waits on. No receive has had them.</p>
      <ul className="rejected">
        {messages.map((message) => (
          <li key={message.position}>
            <p>
              <b>{message.name}</b> <At at={message.at} /> {message.sender !== undefined && <span className="mute">from {message.sender}</span>}
            </p>
            <p className="why fail">
              {message.path && <code>{message.path}</code>} {message.reason}
            </p>
            {message.where !== undefined && <code className="mute">{message.where}</code>}
            <pre className="json">{message.payload === undefined ? "Too large to show: it is in the journal." : JSON.stringify(message.payload, null, 2)}</pre>
            <Resolve id={id} message={message} />
          </li>
        ))}
      </ul>
      {count > messages.length && <p className="mute note">{`And ${(count - messages.length).toLocaleString("en")} more.`}</p>}
    </section>
  );
}

function Resolve({ id, message }: { id: string; message: RejectedMessage }) {
  const operates = useCan("operate");
  const queries = useQueryClient();
  const [asked, setAsked] = useState<"drop" | "correct">();
  if (!operates) return null;
  const act = async (form: FormData) => {
    const note = String(form.get("note")).trim();
    if (asked === "drop") await engine.dropMessage(id, message.position, note);
    else {
      const payload = String(form.get("payload")).trim() || "null";
      JSON.parse(payload); // what is no JSON is told here
      await engine.correctMessage(id, message.position, payload, note, form.get("force") !== null);
    }
    await queries.invalidateQueries({ queryKey: ["tree", id] });
  };
  return (
    <p className="note">
      <button type="button" className="btn sm" onClick={() => setAsked("correct")}>
        Send it corrected…
      </button>{" "}
      <button type="button" className="btn sm" onClick={() => setAsked("drop")}>
        Drop…
      </button>
      {asked !== undefined && (
        <Dialog title={asked === "drop" ? `Drop the message ${message.name}` : `Send the message ${message.name} corrected`} verb={asked === "drop" ? "Drop" : "Send"} close={() => setAsked(undefined)} act={act}>
          {asked === "drop" ? (
            <p>The run never receives it.</p>
          ) : (
            <>
              <div className="field">
                <label htmlFor="corrected-payload">Payload, as JSON</label>
                <textarea id="corrected-payload" name="payload" className="in mono" rows={8} spellCheck={false} defaultValue={message.payload === undefined ? "" : JSON.stringify(message.payload, null, 2)} />
              </div>
              <Force />
            </>
          )}
          <div className="field">
            <label htmlFor="resolve-note">Note for the audit trail</label>
            <input id="resolve-note" name="note" className="in" maxLength={4096} />
          </div>
        </Dialog>
      )}
    </p>
  );
}
