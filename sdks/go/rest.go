package penstock

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Options of a connection to the engine.
type Options struct {
	// Token gives the bearer token of a call; asked before each, so that it can be renewed.
	Token func(context.Context) (string, error)
	// HTTPClient is used for REST in place of one of our own. It must have no timeout of its own.
	HTTPClient *http.Client
}

type caller struct {
	base string
	opts Options
	http *http.Client
}

func newCaller(base string, opts Options) *caller {
	client := opts.HTTPClient
	if client == nil {
		dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
		client = &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 32, DisableCompression: true}}
	}
	return &caller{base, opts, client}
}

type request struct {
	method, path   string
	body           any
	idempotencyKey string
	timeout        time.Duration
}

// call makes one exchange. Every error but one of the encoding is an *Error.
func (c *caller) call(ctx context.Context, r request, answer any) error {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return &Error{Code: "bad-request", Reason: err.Error()}
		}
		body = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	sent, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, body)
	if err != nil {
		return &Error{Code: "bad-request", Reason: err.Error()}
	}
	if body != nil {
		sent.Header.Set("Content-Type", "application/json")
	}
	if r.idempotencyKey != "" {
		sent.Header.Set("Idempotency-Key", r.idempotencyKey)
	}
	if c.opts.Token != nil {
		token, err := c.opts.Token(ctx)
		if err != nil {
			return &Error{Code: "unauthenticated", Reason: err.Error()}
		}
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.http.Do(sent)
	if err != nil {
		return connectionError(ctx, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return connectionError(ctx, err)
	}
	if response.StatusCode/100 != 2 {
		return refusal(response, text)
	}
	if answer != nil && len(text) > 0 {
		if err := json.Unmarshal(text, answer); err != nil {
			return &Error{Code: "internal-error", Reason: "unreadable answer: " + err.Error(), Status: response.StatusCode}
		}
	}
	return nil
}

func connectionError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &Error{Code: "timed-out", Reason: err.Error(), MaybeApplied: true}
	}
	var dial *net.OpError
	refused := errors.As(err, &dial) && dial.Op == "dial"
	return &Error{Code: "connection-failed", Reason: err.Error(), MaybeApplied: !refused}
}

func refusal(response *http.Response, text []byte) error {
	var told struct{ Error, Reason string }
	if json.Unmarshal(text, &told) != nil || told.Error == "" {
		told.Error = byStatus[response.StatusCode]
		told.Reason = fmt.Sprintf("HTTP %d: %.500s", response.StatusCode, text)
	}
	if told.Error == "" {
		told.Error = "internal-error"
	}
	refused := &Error{Code: told.Error, Reason: told.Reason, Status: response.StatusCode}
	refused.MaybeApplied = response.StatusCode >= 500
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil {
		refused.RetryAfter = time.Duration(seconds) * time.Second
	}
	return refused
}
