/** Of a message that is sent all the same. */
export function Force() {
  return (
    <p>
      <label>
        <input type="checkbox" name="force" /> Also if it does not fit what the run waits for
      </label>
    </p>
  );
}
