// Package penstock is a client and a worker for the Penstock workflow engine.
package penstock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	callTimeout     = 30 * time.Second
	exchangeTimeout = 15 * time.Second
	listPart        = 200
)

// Instance is a workflow instance.
type Instance struct {
	ID                string          `json:"id"`
	DefinitionID      string          `json:"definitionId"`
	DefinitionVersion int             `json:"definitionVersion"`
	Status            string          `json:"status"` // ACTIVE, WAITING, COMPLETED, FAILED or CANCELLED
	CurrentStepIDs    []string        `json:"currentStepIds"`
	Variables         json.RawMessage `json:"variables,omitempty"`
	Result            json.RawMessage `json:"result,omitempty"`
	StartedAt         *time.Time      `json:"startedAt,omitempty"`
	CompletedAt       *time.Time      `json:"completedAt,omitempty"`
	StartAt           *time.Time      `json:"startAt,omitempty"` // while it has not begun
	FailureReason     string          `json:"failureReason,omitempty"`
	FailureCode       string          `json:"failureCode,omitempty"`
	BusinessKey       string          `json:"businessKey,omitempty"`
	InstanceKey       string          `json:"instanceKey,omitempty"`
	ParentInstanceID  string          `json:"parentInstanceId,omitempty"`
	FlowKey           string          `json:"flowKey,omitempty"`
	Priority          *int            `json:"priority,omitempty"`
	Deduplicated      bool            `json:"deduplicated,omitempty"` // of a start: it was there before
}

// Ended tells whether nothing more happens to it by itself.
func (i *Instance) Ended() bool {
	return i.Status == "COMPLETED" || i.Status == "FAILED" || i.Status == "CANCELLED"
}

// Dedupe makes starts with one key within a window (ISO 8601) one start.
type Dedupe struct {
	Key    string `json:"key"`
	Window string `json:"window"`
}

// Throttle accepts so many starts with the key in each period. OnExcess is REJECT (the default) or DELAY.
type Throttle struct {
	Key      string `json:"key"`
	Limit    int    `json:"limit"`
	Period   string `json:"period,omitempty"`
	Burst    *int   `json:"burst,omitempty"`
	OnExcess string `json:"onExcess,omitempty"`
}

// Debounce begins one of the starts with the key that come close together. Keep is LAST (the default) or MERGE.
type Debounce struct {
	Key     string `json:"key"`
	Wait    string `json:"wait"`
	MaxWait string `json:"maxWait,omitempty"`
	Keep    string `json:"keep,omitempty"`
}

// StartRequest is a start with all that it may ask for. Only DefinitionID is needed.
type StartRequest struct {
	DefinitionID      string     `json:"definitionId"`
	DefinitionVersion int        `json:"definitionVersion,omitempty"`
	Variables         any        `json:"variables,omitempty"`
	BusinessKey       string     `json:"businessKey,omitempty"`
	InstanceKey       string     `json:"instanceKey,omitempty"`
	KeepInstanceKey   bool       `json:"keepInstanceKey,omitempty"`
	Priority          *int       `json:"priority,omitempty"`
	FlowKey           string     `json:"flowKey,omitempty"`
	StartAt           *time.Time `json:"startAt,omitempty"`
	Delay             string     `json:"delay,omitempty"` // ISO 8601
	Dedupe            *Dedupe    `json:"dedupe,omitempty"`
	Throttle          *Throttle  `json:"throttle,omitempty"`
	Debounce          *Debounce  `json:"debounce,omitempty"`
	WaitSeconds       int        `json:"waitSeconds,omitempty"` // answer when it has ended, or after so long (at most 60)
	// IdempotencyKey makes the start happen once, however often the call is repeated; the client makes one where there is none.
	IdempotencyKey string `json:"-"`
}

// Client calls the engine's REST API. It repeats calls that are safe to repeat while the engine is away.
type Client struct{ caller *caller }

// NewClient makes a client for an engine's URL, such as http://127.0.0.1:8080.
func NewClient(engine string, opts Options) (*Client, error) {
	parsed, err := url.Parse(engine)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Host == "" {
		return nil, fmt.Errorf("penstock: not an http:// or https:// URL: %q", engine)
	}
	return &Client{newCaller(strings.TrimRight(engine, "/"), opts)}, nil
}

// repeated repeats an exchange through outages; one that may have been applied only if always says that this is safe.
func (c *Client) repeated(ctx context.Context, r request, answer any, always bool) error {
	deadline := time.Now().Add(callTimeout + r.timeout)
	r.timeout += exchangeTimeout
	pauses := newBackoff(maxPause)
	for {
		err := c.caller.call(ctx, r, answer)
		var told *Error
		if err == nil || !errors.As(err, &told) || !isUnavailable(told.Code) || (told.MaybeApplied && !always) {
			return err
		}
		pause := pauses.pause(err)
		if time.Now().Add(pause).After(deadline) || !sleep(ctx, pause) {
			return err
		}
	}
}

func (c *Client) instance(ctx context.Context, r request, always bool) (*Instance, error) {
	made := new(Instance)
	if err := c.repeated(ctx, r, made, always); err != nil {
		return nil, err
	}
	return made, nil
}

// UploadDefinition uploads a definition: JSON text as json.RawMessage or []byte, or a value with its form.
func (c *Client) UploadDefinition(ctx context.Context, definition any) error {
	if text, ok := definition.([]byte); ok {
		definition = json.RawMessage(text)
	}
	return c.repeated(ctx, request{method: "POST", path: "/v1/definitions", body: definition}, nil, true)
}

// Start starts an instance.
func (c *Client) Start(ctx context.Context, start StartRequest) (*Instance, error) {
	key := start.IdempotencyKey
	if key == "" {
		key = newKey()
	}
	wait := time.Duration(start.WaitSeconds) * time.Second
	r := request{method: "POST", path: "/v1/instances", body: start, idempotencyKey: key, timeout: wait}
	return c.instance(ctx, r, true)
}

// Get returns an instance as it is now; with a wait (at most 60 s), when it has ended or after so long.
func (c *Client) Get(ctx context.Context, id string, wait time.Duration) (*Instance, error) {
	path := "/v1/instances/" + url.PathEscape(id)
	if wait > 0 {
		path += "?waitSeconds=" + strconv.Itoa(int(wait.Seconds()))
	}
	return c.instance(ctx, request{method: "GET", path: path, timeout: wait}, true)
}

// SignalOptions: with Buffer, or an ID of your own, a signal that comes before its wait is open is kept until then.
type SignalOptions struct {
	Buffer bool
	ID     string
}

// Signal lets a step that waits go on. The variables, which may be nil, are merged.
func (c *Client) Signal(ctx context.Context, instanceID, stepID string, variables any, opts SignalOptions) error {
	query := url.Values{}
	if opts.Buffer {
		query.Set("buffer", "true")
	}
	key := newKey()
	if opts.ID != "" {
		query.Set("signalId", opts.ID)
		key = ""
	}
	if variables == nil {
		variables = struct{}{}
	}
	path := "/v1/instances/" + url.PathEscape(instanceID) + "/signals/" + url.PathEscape(stepID)
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return c.repeated(ctx, request{method: "POST", path: path, body: variables, idempotencyKey: key}, nil, true)
}

// Message is for whoever waits for its name and key.
type Message struct {
	Name           string `json:"name"`
	CorrelationKey string `json:"correlationKey"`
	Variables      any    `json:"variables,omitempty"`
	TTL            string `json:"ttl,omitempty"`       // ISO 8601: how long it is kept when nobody waits
	MessageID      string `json:"messageId,omitempty"` // published once under it; the client makes one where there is none
	Deliver        string `json:"deliver,omitempty"`   // ONE (the default) or ALL
}

// Receiver is a step that received a message.
type Receiver struct {
	InstanceID string `json:"instanceId"`
	StepID     string `json:"stepId"`
}

// Published tells who received a message, and whether it is kept for a wait that is to come.
type Published struct {
	Delivered []Receiver `json:"delivered"`
	Kept      bool       `json:"kept"`
}

// Publish publishes a message.
func (c *Client) Publish(ctx context.Context, message Message) (*Published, error) {
	if message.MessageID == "" {
		message.MessageID = newKey()
	}
	made := new(Published)
	if err := c.repeated(ctx, request{method: "POST", path: "/v1/messages", body: message}, made, true); err != nil {
		return nil, err
	}
	return made, nil
}

// Cancel cancels an instance. An answer that was lost is no error when the instance turns out to be cancelled.
func (c *Client) Cancel(ctx context.Context, id, reason string) (*Instance, error) {
	body := map[string]string{}
	if reason != "" {
		body["reason"] = reason
	}
	made, err := c.instance(ctx, request{method: "POST", path: "/v1/instances/" + url.PathEscape(id) + "/cancel", body: body}, false)
	var told *Error
	if !errors.As(err, &told) || !told.MaybeApplied {
		return made, err
	}
	found, lookErr := c.Get(ctx, id, 0)
	if lookErr == nil && found.Status == "CANCELLED" {
		return found, nil
	}
	return nil, err
}

// RetryOptions of Retry: FromStepID is where to go on instead of the failed step.
type RetryOptions struct {
	FromStepID string `json:"fromStepId,omitempty"`
	StepID     string `json:"stepId,omitempty"`
	Note       string `json:"note,omitempty"`
	Again      bool   `json:"again,omitempty"`
}

// Retry reopens the failed step of a failed instance. Not repeated when its answer is lost: look at the instance then.
func (c *Client) Retry(ctx context.Context, id string, opts RetryOptions) (*Instance, error) {
	return c.instance(ctx, request{method: "POST", path: "/v1/instances/" + url.PathEscape(id) + "/retry", body: opts}, false)
}

// Filter of instances; empty fields match all.
type Filter struct {
	DefinitionID, Status, BusinessKey, InstanceKey, FlowKey, ParentInstanceID string
}

// Page is a part of a list; Next is the cursor of what comes after, empty at the end.
type Page struct {
	Items []*Instance `json:"items"`
	Next  string      `json:"next,omitempty"`
}

// List returns at most limit (1 to 200) instances after a cursor, newest first.
func (c *Client) List(ctx context.Context, filter Filter, limit int, cursor string) (*Page, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	for name, value := range map[string]string{
		"definitionId": filter.DefinitionID, "status": filter.Status, "businessKey": filter.BusinessKey,
		"instanceKey": filter.InstanceKey, "flowKey": filter.FlowKey, "parentInstanceId": filter.ParentInstanceID, "cursor": cursor,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	page := new(Page)
	if err := c.repeated(ctx, request{method: "GET", path: "/v1/instances?" + query.Encode()}, page, true); err != nil {
		return nil, err
	}
	return page, nil
}

// All reads all instances that match, page after page: none is left out and none comes twice.
func (c *Client) All(ctx context.Context, filter Filter) iter.Seq2[*Instance, error] {
	return func(yield func(*Instance, error) bool) {
		for cursor := ""; ; {
			page, err := c.List(ctx, filter, listPart, cursor)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, each := range page.Items {
				if !yield(each, nil) {
					return
				}
			}
			if cursor = page.Next; cursor == "" {
				return
			}
		}
	}
}

func newKey() string { return rand.Text() }
