// One of some steps of an instance.

interface Props {
  steps: readonly { id: string; name?: string }[];
  note?: (id: string) => string;
  chosen?: string;
  choose?: (id: string) => void;
}

export function StepField({ steps, note, chosen, choose }: Props) {
  return (
    <div className="field">
      <label htmlFor="step">Step</label>
      <select id="step" name="step" className="in" {...(choose && { value: chosen, onChange: (event) => choose(event.currentTarget.value) })}>
        {steps.map((step) => (
          <option key={step.id} value={step.id}>
            {step.name || step.id}
            {note?.(step.id)}
          </option>
        ))}
      </select>
    </div>
  );
}
