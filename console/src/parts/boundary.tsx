// What is shown in place of a page that can't be: its files are of another version than the engine now, or it failed at
// what it was given. The rail stays.
import { Component, type ReactNode } from "react";

interface Props {
  /** Another one is another page: it is tried anew. */
  page: string;
  children: ReactNode;
}

export class Boundary extends Component<Props, { error?: Error | undefined }> {
  override state: { error?: Error | undefined } = {};

  static getDerivedStateFromError(error: Error) {
    return { error };
  }

  override componentDidUpdate(before: Props) {
    if (before.page !== this.props.page && this.state.error) this.setState({ error: undefined });
  }

  override render() {
    if (!this.state.error) return this.props.children;
    return (
      <div className="problem" role="alert">
        <h2>This page could not be shown</h2>
        <p>{this.state.error.message}</p>
        <p>After an update of the engine an open page has to be loaded anew.</p>
        <button type="button" className="btn" onClick={() => location.reload()}>
          Load it anew
        </button>
      </div>
    );
  }
}
