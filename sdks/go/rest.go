package penstock

import (
	"bytes"
	"context"
	"crypto/tls"
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
	// TLS is the configuration for https:// and grpcs://, such as a CA of your own; nil trusts the system's.
	TLS *tls.Config
	// HTTPClient is used for REST in place of one of our own. It must have no timeout of its own.
	HTTPClient *http.Client
}

const maxAnswer = 64 << 20

type caller struct {
	base string
	opts Options
	http *http.Client
}

func newCaller(base string, opts Options) *caller {
	client := opts.HTTPClient
	if client == nil {
		dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
		client = &http.Client{
			Transport: &http.Transport{
				DialContext: dialer.DialContext, MaxIdleConnsPerHost: 32, DisableCompression: true, TLSClientConfig: opts.TLS,
				TLSHandshakeTimeout: 10 * time.Second,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
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
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return connectionError(ctx, err)
	}
	if len(text) > maxAnswer {
		return &Error{Code: "internal-error", Reason: "the answer is larger than 64 MiB", Status: response.StatusCode, MaybeApplied: true}
	}
	if response.StatusCode/100 != 2 {
		return refusal(response, text)
	}
	if answer != nil && len(text) > 0 {
		if err := json.Unmarshal(text, answer); err != nil {
			return &Error{Code: "internal-error", Reason: "unreadable answer: " + err.Error(), Status: response.StatusCode, MaybeApplied: true}
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
	if to := response.Header.Get("Location"); response.StatusCode/100 == 3 {
		told.Error, told.Reason = "redirected", fmt.Sprintf("HTTP %d to %.500s: this is not the engine's address", response.StatusCode, to)
	}
	if told.Error == "" {
		told.Error = "internal-error"
	}
	refused := &Error{Code: told.Error, Reason: told.Reason, Status: response.StatusCode}
	refused.MaybeApplied = response.StatusCode >= 500
	after := response.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(after); err == nil && seconds > 0 {
		refused.RetryAfter = time.Duration(min(seconds, 86_400)) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		refused.RetryAfter = max(0, time.Until(at))
	}
	return refused
}
