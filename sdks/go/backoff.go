package penstock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	firstPause    = 100 * time.Millisecond
	maxPause      = 5 * time.Second
	maxRetryAfter = time.Minute
)

// backoff gives pauses that double, each shortened by a random part of up to half.
type backoff struct{ next, max time.Duration }

func newBackoff(max time.Duration) *backoff { return &backoff{firstPause, max} }

func (b *backoff) pause(err error) time.Duration {
	pause := time.Duration(float64(b.next) * (0.5 + rand.Float64()/2))
	b.next = min(2*b.next, b.max)
	var told *Error
	if errors.As(err, &told) && told.RetryAfter > 0 {
		pause = max(pause, time.Duration(float64(min(told.RetryAfter, maxRetryAfter))*(1+rand.Float64()/4)))
	}
	return pause
}

func (b *backoff) reset() { b.next = firstPause }

// sleep returns false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
