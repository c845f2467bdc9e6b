// Command conformance is the Go worker and client as a program under test: sdks/conformance/README.md.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	penstock "penstock.io/go"
)

var output sync.Mutex

func emit(event map[string]any) {
	output.Lock()
	defer output.Unlock()
	text, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s\n", text)
}

type step struct {
	Op                string
	Seconds           float64
	Variables         json.RawMessage
	Message           string
	Code              string
	Retryable         *bool
	RetryAfterSeconds float64
	Signal            string
	Way               int
	Report            *struct{ Checkpoint, Progress any }
}

func behave(ctx context.Context, job *penstock.Job) (any, error) {
	told := func(event string, more ...string) {
		made := map[string]any{"event": event, "job": job.ID, "attempt": job.Attempt, "instance": job.InstanceID}
		for i := 0; i < len(more); i += 2 {
			made[more[i]] = more[i+1]
		}
		emit(made)
	}
	told("begin", "type", job.Type, "idempotencyKey", job.IdempotencyKey)
	defer told("end")
	var given struct {
		Do    []step          `json:"do"`
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(job.Variables, &given); err != nil {
		return nil, err
	}
	made, err := act(ctx, job, given.Do[min(job.Attempt, len(given.Do))-1], given.Input)
	if ctx.Err() != nil && err != nil {
		told("stop", "reason", context.Cause(ctx).Error())
	}
	return made, err
}

func act(ctx context.Context, job *penstock.Job, do step, input json.RawMessage) (any, error) {
	if do.Report != nil {
		if err := job.Report(ctx, do.Report.Checkpoint, do.Report.Progress); err != nil {
			return nil, err
		}
	}
	slept := any(do.Variables)
	if do.Variables == nil {
		slept = map[string]bool{"slept": true}
	}
	switch do.Op {
	case "complete":
		return do.Variables, nil
	case "none":
		return nil, nil
	case "echo":
		return map[string]json.RawMessage{"echo": input}, nil
	case "context":
		return map[string]any{"context": map[string]any{
			"id": job.ID, "jobType": job.Type, "instanceId": job.InstanceID, "stepId": job.StepID, "attempt": job.Attempt,
			"retriesRemaining": job.RetriesRemaining, "definitionId": job.DefinitionID, "definitionVersion": job.DefinitionVersion,
			"businessKey": job.BusinessKey, "idempotencyKey": job.IdempotencyKey,
		}}, nil
	case "checkpoint":
		return map[string]any{"saw": job.Checkpoint}, nil
	case "notJson":
		return map[string]any{"value": math.NaN()}, nil
	case "nul":
		return map[string]any{"text": "a\x00b"}, nil
	case "throw":
		panic(do.Message + " boom")
	case "fail":
		return nil, failureOf(do)
	case "sleep":
		select {
		case <-time.After(time.Duration(do.Seconds * float64(time.Second))):
			return slept, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "stubborn":
		time.Sleep(time.Duration(do.Seconds * float64(time.Second)))
		return slept, nil
	case "later":
		return nil, penstock.Later(time.Now().Add(seconds(do.Seconds)))
	case "waitFor":
		var until time.Time
		if do.Seconds > 0 {
			until = time.Now().Add(seconds(do.Seconds))
		}
		return nil, penstock.WaitFor(do.Signal, until)
	case "worst":
		return worst(do.Way)
	case "crash":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil, fmt.Errorf("unknown op %s", do.Op)
}

// nasty breaks whoever looks at it.
type nasty struct{ text *string }

func (n *nasty) Error() string                { return *n.text }
func (n *nasty) String() string               { return *n.text }
func (n *nasty) MarshalJSON() ([]byte, error) { panic("no form") }

func worst(way int) (any, error) {
	switch way {
	case 1:
		return nil, &nasty{}
	case 2:
		runtime.Goexit()
	case 3:
		return &nasty{}, nil
	}
	panic(&nasty{})
}

func failureOf(do step) error {
	retryable := do.Retryable == nil || *do.Retryable
	if do.Code != "" {
		made := &penstock.StepError{Code: do.Code, Message: do.Message, NoRetry: !retryable}
		if do.Variables != nil {
			made.Variables = do.Variables
		}
		return made
	}
	err := errors.New(do.Message)
	switch {
	case !retryable:
		return penstock.NonRetryable(err)
	case do.RetryAfterSeconds > 0:
		return penstock.RetryAfter(err, time.Duration(do.RetryAfterSeconds*float64(time.Second)))
	}
	return err
}

type order struct {
	Name  string   `json:"name"`
	Count int      `json:"count"`
	Tags  []string `json:"tags"`
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

func runWorker() error {
	var given struct {
		WorkerID                                     string
		Concurrency                                  int
		LeaseSeconds, WaitSeconds, DrainGraceSeconds float64
		Token                                        string
		JobTypes                                     []struct {
			Type, Handler  string
			Concurrency    int
			TimeoutSeconds float64
		}
	}
	if err := json.Unmarshal([]byte(os.Getenv("CONFORMANCE_OPTIONS")), &given); err != nil {
		return err
	}
	options := penstock.WorkerOptions{
		ID: given.WorkerID, Concurrency: given.Concurrency, Lease: seconds(given.LeaseSeconds),
		PollWait: seconds(given.WaitSeconds), DrainGrace: seconds(given.DrainGraceSeconds),
	}
	if given.DrainGraceSeconds == 0 {
		options.DrainGrace = -1
	}
	if given.Token != "" {
		options.Token = func(context.Context) (string, error) { return given.Token, nil }
	}
	worker, err := penstock.NewWorker(os.Getenv("PENSTOCK_URL"), options)
	if err != nil {
		return err
	}
	for _, each := range given.JobTypes {
		handler := penstock.Handler(behave)
		if each.Handler == "nothing" {
			handler = func(context.Context, *penstock.Job) (any, error) { return nil, nil }
		}
		if each.Handler == "typed" {
			handler = penstock.Typed(func(_ context.Context, _ *penstock.Job, o order) (any, error) {
				return map[string]string{"summary": fmt.Sprintf("%s:%d:%d", o.Name, o.Count, len(o.Tags))}, nil
			})
		}
		worker.Handle(each.Type, handler, penstock.HandlerOptions{Concurrency: each.Concurrency, Timeout: seconds(each.TimeoutSeconds)})
	}
	emit(map[string]any{"event": "ready"})
	return worker.RunUntilSignal()
}

type command struct {
	Call string
	ID   string
	penstock.StartRequest
	IdempotencyKey                                   string
	StepID, Reason, FromStepID, Note, Status, Cursor string
	Buffer, ToAll                                    bool
	SignalID, Name, CorrelationKey, TTL, MessageID   string
	Limit                                            int
}

func runClient() error {
	client, err := penstock.NewClient(os.Getenv("PENSTOCK_URL"), penstock.Options{})
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var given command
		var raw struct{ Variables json.RawMessage }
		if err := errors.Join(json.Unmarshal(lines.Bytes(), &given), json.Unmarshal(lines.Bytes(), &raw)); err != nil {
			return err
		}
		given.StartRequest.Variables = nil
		if raw.Variables != nil {
			given.StartRequest.Variables = raw.Variables
		}
		made, err := call(context.Background(), client, given)
		if err != nil {
			emit(map[string]any{"error": penstock.ErrorCode(err), "reason": err.Error()})
		} else {
			emit(map[string]any{"result": made})
		}
	}
	return lines.Err()
}

func call(ctx context.Context, client *penstock.Client, given command) (any, error) {
	switch given.Call {
	case "start":
		given.StartRequest.IdempotencyKey = given.IdempotencyKey
		return client.Start(ctx, given.StartRequest)
	case "get":
		return client.Get(ctx, given.ID, time.Duration(given.WaitSeconds)*time.Second)
	case "signal":
		return nil, client.Signal(ctx, given.ID, given.StepID, given.Variables, penstock.SignalOptions{Buffer: given.Buffer, ID: given.SignalID})
	case "publish":
		message := penstock.Message{Name: given.Name, CorrelationKey: given.CorrelationKey, Variables: given.Variables, TTL: given.TTL, MessageID: given.MessageID}
		if given.ToAll {
			message.Deliver = "ALL"
		}
		return client.Publish(ctx, message)
	case "cancel":
		return client.Cancel(ctx, given.ID, given.Reason)
	case "retry":
		return client.Retry(ctx, given.ID, penstock.RetryOptions{FromStepID: given.FromStepID, Note: given.Note})
	case "list":
		filter := penstock.Filter{DefinitionID: given.DefinitionID, Status: given.Status, BusinessKey: given.BusinessKey, FlowKey: given.FlowKey}
		return client.List(ctx, filter, cmp.Or(given.Limit, 20), given.Cursor)
	case "listAll":
		ids := []string{}
		for each, err := range client.All(ctx, penstock.Filter{DefinitionID: given.DefinitionID}) {
			if err != nil {
				return nil, err
			}
			ids = append(ids, each.ID)
		}
		return ids, nil
	}
	return nil, fmt.Errorf("unknown call %s", given.Call)
}

func main() {
	run := runWorker
	if os.Args[1] == "client" {
		run = runClient
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
