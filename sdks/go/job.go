package penstock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Job is what a handler works on.
type Job struct {
	ID                string `json:"id"`
	Type              string `json:"jobType"`
	InstanceID        string `json:"instanceId"`
	StepID            string `json:"stepId"`
	Attempt           int    `json:"attempt"`
	RetriesRemaining  int    `json:"retriesRemaining"`
	DefinitionID      string `json:"definitionId"`
	DefinitionVersion int    `json:"definitionVersion"`
	BusinessKey       string `json:"businessKey"`
	// IdempotencyKey is what to give to the systems that a handler calls: the same in all attempts, also after a
	// retry of the instance.
	IdempotencyKey string          `json:"idempotencyKey"`
	Variables      json.RawMessage `json:"variables"`  // all of the instance's
	Checkpoint     json.RawMessage `json:"checkpoint"` // what an earlier attempt stored; nil when nothing
	held           *heldJob
}

// Bind reads the variables into a value. A field of a struct that is no pointer and has no omitempty must be there.
func (j *Job) Bind(into any) error {
	if err := json.Unmarshal(j.Variables, into); err != nil {
		return fmt.Errorf("the variables do not fit: %w", err)
	}
	kind := reflect.TypeOf(into).Elem()
	if kind.Kind() != reflect.Struct {
		return nil
	}
	given := map[string]json.RawMessage{}
	if err := json.Unmarshal(j.Variables, &given); err != nil {
		return fmt.Errorf("the variables do not fit: %w", err)
	}
	for i := range kind.NumField() {
		field := kind.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			name = field.Name
		}
		optional := !field.IsExported() || name == "-" || field.Type.Kind() == reflect.Pointer || strings.Contains(options, "omit")
		if value, there := given[name]; !optional && (!there || string(value) == "null") {
			return fmt.Errorf("the variables do not fit: %s is missing", name)
		}
	}
	return nil
}

// Report stores a checkpoint for the next attempt and shows progress; nil leaves either as it is. Waits through outages.
func (j *Job) Report(ctx context.Context, checkpoint, progress any) error {
	beat := heartbeat{JobID: j.ID, Attempt: j.Attempt}
	for _, each := range []struct {
		value any
		into  *json.RawMessage
	}{{checkpoint, &beat.Checkpoint}, {progress, &beat.Progress}} {
		if each.value != nil {
			text, err := json.Marshal(each.value)
			if err != nil {
				return NonRetryable(err)
			}
			*each.into = text
		}
	}
	return j.held.session.report(ctx, j.held, beat)
}

// Handler does a job. What it returns (nil, or anything with the form of a JSON object) is merged into the variables.
// Its context is cancelled when it is to stop: context.Cause says why.
type Handler func(ctx context.Context, job *Job) (any, error)

// Typed makes a handler of a function that takes the variables as a type of its own. What does not fit fails for good.
func Typed[T any](handle func(ctx context.Context, job *Job, variables T) (any, error)) Handler {
	return func(ctx context.Context, job *Job) (any, error) {
		var variables T
		if err := job.Bind(&variables); err != nil {
			return nil, NonRetryable(err)
		}
		return handle(ctx, job, variables)
	}
}

// heldJob is a job that this worker holds, from its coming until its result is settled.
type heldJob struct {
	session    *session
	job        *Job
	sub        *subscription
	ctx        context.Context
	cancel     context.CancelCauseFunc
	receivedAt time.Time
	leaseEnds  time.Time // guarded by the session, like all below
	begun      bool
	settled    bool // lost, given back, or its result is answered
	stopOnce   sync.Once
}

type jobKey struct {
	id      string
	attempt int
}

func (h *heldJob) key() jobKey { return jobKey{h.job.ID, h.job.Attempt} }

func (h *heldJob) stop(why error) { h.stopOnce.Do(func() { h.cancel(why) }) }

// run calls the handler and says what is to be reported; nil when nothing is.
func (h *heldJob) run(of *registered) (report *result) {
	defer func() { // of a method of the handler's result or error
		if broken := recover(); broken != nil {
			report = h.failed(panicked(broken))
		}
	}()
	ctx := h.ctx
	if of.timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, of.timeout, ErrDeadline)
		defer cancel()
		ctx = limited
	}
	ended := make(chan struct{})
	defer close(ended)
	defer context.AfterFunc(ctx, func() { h.warnOfDeafness(ctx, ended) })()
	made, err := guarded(ctx, of.handler, h.job)
	var text json.RawMessage
	if err == nil && made != nil {
		if text, err = json.Marshal(made); err != nil {
			err = NonRetryable(fmt.Errorf("the result has no JSON form: %w", err))
		} else if text[0] != '{' {
			err = NonRetryable(errors.New("the result is no JSON object"))
		}
	}
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, ErrLeaseLost), errors.Is(cause, ErrCancelled):
		return nil
	case err == nil:
		return &result{held: h, kind: completion, JobID: h.job.ID, Attempt: h.job.Attempt, Variables: text}
	case errors.Is(cause, ErrDeadline):
		return h.failure(fmt.Sprintf("not finished within its time limit of %s", of.timeout), true)
	case cause != nil:
		return nil // it stops: the job goes back
	}
	return h.failed(err)
}

// warnOfDeafness tells of a handler that goes on although it was told to stop.
func (h *heldJob) warnOfDeafness(ctx context.Context, ended <-chan struct{}) {
	select {
	case <-ended:
	case <-time.After(deafAfter):
		h.session.log.Warn("a handler was told to stop and goes on; it keeps its slot: let it watch its context",
			"job", h.job.ID, "type", h.job.Type, "reason", context.Cause(ctx))
	}
}

func (h *heldJob) failure(message string, retryable bool) *result {
	if len(message) > maxErrorBytes {
		message = message[:maxErrorBytes]
	}
	return &result{
		held: h, kind: failure, JobID: h.job.ID, Attempt: h.job.Attempt,
		ErrorMessage: strings.ToValidUTF8(strings.ReplaceAll(message, "\x00", "\uFFFD"), "\uFFFD"), Retryable: &retryable,
	}
}

func (h *heldJob) failed(err error) *result {
	var step *StepError
	if errors.As(err, &step) {
		made := h.failure(step.Message, !step.NoRetry)
		made.ErrorCode = step.Code
		if step.Variables != nil {
			text, wrong := json.Marshal(step.Variables)
			if wrong != nil {
				return h.failure(wrong.Error(), false)
			}
			made.Variables = text
		}
		return made
	}
	var final nonRetryable
	retryable := !errors.As(err, &final)
	var wait parked
	if errors.As(err, &wait) && retryable {
		return h.parked(wait)
	}
	made := h.failure(err.Error(), retryable)
	var later retryAfter
	if errors.As(err, &later) {
		made.RetryAfterSeconds = min(max(0, later.after), maxRetryPause).Seconds()
	}
	var broken panicError
	if errors.As(err, &broken) {
		made.StackTrace = broken.stack
	}
	return made
}

func (h *heldJob) parked(wait parked) *result {
	if wait.until.IsZero() && wait.signal == "" {
		return h.failure("Later and WaitFor need a time or the name of a signal", false)
	}
	made := &result{held: h, kind: park, JobID: h.job.ID, Attempt: h.job.Attempt, Signal: wait.signal}
	if !wait.until.IsZero() {
		made.Until = &wait.until
	}
	return made
}

// panicError is a panic of user code, with the end of its stack.
type panicError struct {
	value any
	stack string
}

func (p panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func panicked(value any) error {
	stack := debug.Stack()
	return panicError{value, strings.ToValidUTF8(string(stack[max(0, len(stack)-maxStackBytes):]), "\uFFFD")}
}

// guarded turns a panic of the handler into an error.
func guarded(ctx context.Context, handler Handler, job *Job) (made any, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = panicked(broken)
		}
	}()
	return handler(ctx, job)
}

const (
	maxErrorBytes = 4096
	maxStackBytes = 16_384
	maxRetryPause = 24 * 24 * time.Hour // what fits into the milliseconds of a message
	deafAfter     = 10 * time.Second
)

type resultKind string

const (
	completion resultKind = "complete"
	failure    resultKind = "fail"
	park       resultKind = "park"
	release    resultKind = "release"
)

// result is what is to be reported about a job, in the form of REST.
type result struct {
	held   *heldJob
	kind   resultKind
	faults int

	JobID             string          `json:"jobId"`
	Attempt           int             `json:"attempt"`
	Variables         json.RawMessage `json:"variables,omitempty"`
	Retryable         *bool           `json:"retryable,omitempty"`
	ErrorMessage      string          `json:"errorMessage,omitempty"`
	ErrorCode         string          `json:"errorCode,omitempty"`
	RetryAfterSeconds float64         `json:"retryAfterSeconds,omitempty"`
	StackTrace        string          `json:"stackTrace,omitempty"`
	Until             *time.Time      `json:"until,omitempty"`
	Signal            string          `json:"signal,omitempty"`
}

type heartbeat struct {
	JobID        string          `json:"jobId"`
	Attempt      int             `json:"attempt"`
	LeaseSeconds int             `json:"leaseSeconds"`
	Checkpoint   json.RawMessage `json:"checkpoint,omitempty"`
	Progress     json.RawMessage `json:"progress,omitempty"`
}

type outcome struct {
	JobID   string `json:"jobId"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`
}
