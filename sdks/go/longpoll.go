package penstock

import (
	"context"
	"net/url"
	"sync"
	"time"
)

const (
	heldPoll = 500 * time.Millisecond // a poll that comes back empty sooner was not held: pause
	idleMax  = time.Second
)

// longPoll asks for jobs over REST.
type longPoll struct {
	session *session
	caller  *caller
}

func newLongPoll(s *session, c *caller) *longPoll { return &longPoll{s, c} }

func (p *longPoll) close() { p.caller.http.CloseIdleConnections() }

func (p *longPoll) run(ctx context.Context) error {
	refused := make(chan error, len(p.session.subs))
	var polls sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer polls.Wait()
	defer cancel()
	polls.Go(func() { p.watch(ctx) })
	for _, sub := range p.session.subs {
		polls.Go(func() {
			if err := p.poll(ctx, sub); err != nil {
				refused <- err
			}
		})
	}
	select {
	case err := <-refused:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (p *longPoll) poll(ctx context.Context, sub *subscription) error {
	s := p.session
	asking, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-s.stopped:
			stop()
		case <-asking.Done():
		}
	}()
	outages, idle, answered := newBackoff(maxPause), newBackoff(idleMax), false
	for asking.Err() == nil {
		room, changed := s.roomOf(sub)
		if room == 0 {
			select {
			case <-changed:
			case <-asking.Done():
			}
			continue
		}
		asked := time.Now()
		var got struct {
			Jobs *[]*Job `json:"jobs"`
		}
		err := p.caller.call(asking, request{method: "POST", path: "/v1/jobs/poll", timeout: s.opts.PollWait + callLimit, body: map[string]any{
			"workerId": s.opts.ID, "jobTypes": sub.types, "maxJobs": room,
			"leaseSeconds": int(s.opts.Lease.Seconds()), "waitSeconds": int(s.opts.PollWait.Seconds()),
		}}, &got)
		if err == nil && got.Jobs == nil {
			err = &Error{Code: "internal-error", Reason: "the answer to a poll has no jobs"}
		}
		if asking.Err() != nil {
			if got.Jobs != nil {
				p.acceptAll(*got.Jobs)
			}
			return nil
		}
		if err != nil {
			if !mayPass(err, answered) {
				return err
			}
			s.log.Warn("no jobs from the engine", "error", err)
			sleep(asking, outages.pause(err))
			continue
		}
		answered = true
		outages.reset()
		if p.acceptAll(*got.Jobs) || time.Since(asked) >= heldPoll {
			idle.reset()
		} else {
			sleep(asking, idle.pause(nil))
		}
	}
	return nil
}

// acceptAll tells whether any of the jobs was of use.
func (p *longPoll) acceptAll(jobs []*Job) bool {
	var back []*result
	for _, each := range jobs {
		if each != nil && !p.session.accept(each) {
			back = append(back, &result{kind: release, JobID: each.ID, Attempt: each.Attempt})
		}
	}
	if len(back) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
		defer cancel()
		_, _ = p.send(ctx, release, back) // their leases end by themselves
	}
	return len(back) < len(jobs)
}

// watch hears at once of jobs that are cancelled. Engines that don't tell leave it to the heartbeats.
func (p *longPoll) watch(ctx context.Context) {
	pauses := newBackoff(maxPause)
	for ctx.Err() == nil {
		asked := time.Now()
		var got struct {
			Lost []struct {
				JobID   string `json:"jobId"`
				Attempt int    `json:"attempt"`
				Outcome string `json:"outcome"`
			} `json:"lost"`
		}
		err := p.caller.call(ctx, request{method: "POST", path: "/v1/jobs/lost", timeout: p.session.opts.PollWait + callLimit, body: map[string]any{
			"workerId": p.session.opts.ID, "waitSeconds": int(p.session.opts.PollWait.Seconds()),
		}}, &got)
		if err != nil && !mayPass(err, true) {
			return
		}
		for _, each := range got.Lost {
			why := ErrLeaseLost
			if each.Outcome == "cancelled" {
				why = ErrCancelled
			}
			p.session.lose(jobKey{each.JobID, each.Attempt}, why)
		}
		if err == nil && (len(got.Lost) > 0 || time.Since(asked) >= heldPoll) {
			pauses.reset()
		} else {
			sleep(ctx, pauses.pause(err))
		}
	}
}

func (p *longPoll) send(ctx context.Context, kind resultKind, items []*result) ([]outcome, error) {
	if kind == park {
		return p.parkEach(ctx, items)
	}
	field := "results"
	if kind == release {
		field = "jobs"
	}
	return p.outcomes(ctx, "/v1/jobs/"+string(kind), field, items)
}

// parkEach makes a call for each: REST has none for many.
func (p *longPoll) parkEach(ctx context.Context, items []*result) ([]outcome, error) {
	outcomes := make([]outcome, len(items))
	for i, each := range items {
		body := map[string]any{"workerId": p.session.opts.ID, "attempt": each.Attempt, "until": each.Until, "signal": each.Signal}
		if each.Signal == "" {
			delete(body, "signal")
		}
		err := p.caller.call(ctx, request{method: "POST", path: "/v1/jobs/" + url.PathEscape(each.JobID) + "/park", body: body, timeout: callLimit}, nil)
		outcomes[i] = outcome{each.JobID, "ok", ""}
		switch code := ErrorCode(err); {
		case err == nil:
		case code == "lease-lost" || code == "cancelled" || code == "not-found":
			outcomes[i] = outcome{each.JobID, code, err.Error()}
		case isUnavailable(code):
			outcomes[i].Outcome = "unavailable"
		case code == "bad-request":
			outcomes[i] = outcome{each.JobID, "invalid", err.Error()}
		default:
			return nil, err
		}
	}
	return outcomes, nil
}

func (p *longPoll) beat(ctx context.Context, items []heartbeat) ([]outcome, error) {
	return p.outcomes(ctx, "/v1/jobs/heartbeat", "jobs", items)
}

func (p *longPoll) outcomes(ctx context.Context, path, field string, items any) ([]outcome, error) {
	var got struct {
		Results []outcome `json:"results"`
	}
	body := map[string]any{"workerId": p.session.opts.ID, field: items}
	err := p.caller.call(ctx, request{method: "POST", path: path, body: body, timeout: callLimit}, &got)
	return got.Results, err
}
