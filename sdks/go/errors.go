package penstock

import (
	"errors"
	"fmt"
	"time"
)

// Error is what a call to the engine fails with. Code is the engine's word for the condition, such as "not-found",
// "conflict", "throttled", "lease-lost"; "connection-failed" and "timed-out" are this library's.
type Error struct {
	Code   string
	Reason string
	// Status is the HTTP status; 0 when no answer was received.
	Status int
	// MaybeApplied tells of an error with no answer whether the request may have taken effect.
	MaybeApplied bool
	// RetryAfter is the pause that the engine asks for, if any.
	RetryAfter time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("penstock: %s: %s", e.Code, e.Reason) }

// ErrorCode returns the engine's word for what went wrong, or "" for an error of another kind.
func ErrorCode(err error) string {
	var found *Error
	if errors.As(err, &found) {
		return found.Code
	}
	return ""
}

var byStatus = map[int]string{
	400: "bad-request", 401: "unauthenticated", 403: "forbidden", 404: "not-found", 408: "unavailable", 409: "conflict",
	410: "gone", 413: "payload-too-large", 415: "unsupported-format", 429: "resource-exhausted", 500: "internal-error",
	502: "unavailable", 503: "unavailable", 504: "unavailable",
}

func isUnavailable(code string) bool {
	return code == "unavailable" || code == "resource-exhausted" || code == "connection-failed" || code == "timed-out"
}

// whatToDo names the next step for a refusal that ends a worker.
func whatToDo(err error) string {
	switch ErrorCode(err) {
	case "unauthenticated":
		return "give the worker a token that the engine knows: Options.Token"
	case "forbidden":
		return "give the caller of this token the permission to work"
	case "gone":
		return "the engine dispatches jobs through Kafka, which this worker does not read"
	case "redirected":
		return "give the worker the address that the redirect names"
	}
	return "look whether the URL is the engine's, and whether the engine is as new as this worker"
}

// mayPass tells whether to ask for jobs again. A worker that was let in once waits for its token to be renewed.
func mayPass(err error, answered bool) bool {
	code := ErrorCode(err)
	return isUnavailable(code) || code == "internal-error" || code == "" || (answered && code == "unauthenticated")
}

// StepError fails a job with a code that the workflow knows. An error boundary of the step that names the code takes
// it at once; otherwise it is tried again while the step has retries left, unless NoRetry is set.
type StepError struct {
	Code    string // 1 to 100 of letters, digits, "_", "." and "-"
	Message string
	// Variables are known where the error is caught: anything with the form of a JSON object.
	Variables any
	NoRetry   bool
}

func (e *StepError) Error() string { return e.Code + ": " + e.Message }

type nonRetryable struct{ error }

func (e nonRetryable) Unwrap() error { return e.error }

// NonRetryable fails the job for good: the step and its instance fail with the error's text.
func NonRetryable(err error) error { return nonRetryable{err} }

type retryAfter struct {
	error
	after time.Duration
}

func (e retryAfter) Unwrap() error { return e.error }

// RetryAfter fails the job; it is tried again after the pause while the step has retries left.
func RetryAfter(err error, after time.Duration) error { return retryAfter{err, after} }

type parked struct {
	until  time.Time // zero: without an end
	signal string
}

func (p parked) Error() string {
	if p.signal == "" {
		return fmt.Sprintf("waits until %s", p.until)
	}
	return fmt.Sprintf("waits for the signal %q", p.signal)
}

// Later gives the job back until a time: it comes again then, as the next attempt, with its checkpoint. No retry is
// spent, and the worker is free meanwhile.
func Later(until time.Time) error { return parked{until: until} }

// WaitFor gives the job back until the instance gets a signal of this name (or one to the step), at longest until a
// time; the zero time is no limit. What the signal brings is among the variables of the next attempt.
func WaitFor(signal string, until time.Time) error { return parked{until, signal} }

// Why a handler's context was cancelled: context.Cause(ctx).
var (
	ErrLeaseLost = errors.New("lease-lost") // another attempt may run
	ErrCancelled = errors.New("cancelled")  // the instance ended, or the step was interrupted
	ErrStopping  = errors.New("stopping")   // the worker drains, and the grace is over
	ErrDeadline  = errors.New("deadline")   // the handler's time limit
)
