// penstock.v1.Worker on a real engine: batches and the Work stream. See services.go.
package main

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"

	penstock "penstock.test/client/pb/penstock"
	workflow "penstock.test/client/pb/workflow"
)

// work is one Work stream and what came on it so far.
type work struct {
	grpc.BidiStreamingClient[penstock.WorkRequest, penstock.WorkResponse]
	all  penstock.WorkResponse
	done error
}

func (s *subject) work(ctx context.Context, jobType string, credit, leaseSeconds int32) *work {
	opened := &work{BidiStreamingClient: must(s.worker.Work(ctx))}
	opened.send(&penstock.WorkRequest{
		WorkerId: "go", LeaseSeconds: leaseSeconds, Credits: []*penstock.Credit{{JobType: jobType, Jobs: credit}},
	})
	return opened
}

func (w *work) send(request *penstock.WorkRequest) { must(0, w.Send(request)) }

// until reads on until there is enough, or the stream has ended.
func (w *work) until(enough func() bool) {
	for !enough() && w.done == nil {
		answer, err := w.Recv()
		w.done = err
		if err == nil {
			w.all.Jobs = append(w.all.Jobs, answer.Jobs...)
			w.all.Outcomes = append(w.all.Outcomes, answer.Outcomes...)
			w.all.Heartbeats = append(w.all.Heartbeats, answer.Heartbeats...)
			w.all.LeaseLosses = append(w.all.LeaseLosses, answer.LeaseLosses...)
			w.all.Cancellations = append(w.all.Cancellations, answer.Cancellations...)
			w.all.Credits = append(w.all.Credits, answer.Credits...)
		}
	}
}

func (w *work) jobs(count int) []*penstock.Job {
	w.until(func() bool { return len(w.all.Jobs) >= count })
	return w.all.Jobs
}

func (w *work) outcomes(count int) []string {
	w.until(func() bool { return len(w.all.Outcomes) >= count })
	return outcomes(w.all.Outcomes)
}

// finish half-closes and reads to the end.
func (w *work) finish() string {
	must(0, w.CloseSend())
	w.until(func() bool { return false })
	if w.done == io.EOF {
		return "OK"
	}
	return w.done.Error()
}

func outcomes(items []*penstock.JobOutcome) []string {
	found := []string{}
	for _, item := range items {
		found = append(found, item.Outcome.String())
	}
	return found
}

func (s *subject) many(id string, count int, variables string) []string {
	request := &penstock.StartInstancesRequest{}
	for range count {
		request.Items = append(request.Items, &penstock.StartItem{DefinitionId: id, Variables: []byte(variables)})
	}
	ids := []string{}
	for _, result := range must(s.worker.StartInstances(s.ctx, request)).Results {
		ids = append(ids, result.Instance.GetId())
	}
	return ids
}

func (s *subject) batches() {
	s.upload("go-batches", task("a", "go-batches", "end", 5))
	exact := `{"n":9007199254740993}`
	items := []*penstock.StartItem{
		{DefinitionId: "go-batches", Variables: []byte(exact), BusinessKey: "key"}, {DefinitionId: "nothing"}, {},
		{DefinitionId: "go-batches", Variables: []byte("{broken")},
	}
	started := must(s.worker.StartInstances(s.ctx, &penstock.StartInstancesRequest{Items: items})).Results
	first := started[0].Instance
	s.saw["started"] = []any{
		first.DefinitionId, first.DefinitionVersion, first.Status.String(), first.CurrentStepIds, string(first.Variables),
		recent(first.StartedAt), first.BusinessKey,
	}
	s.saw["errors"] = []string{started[1].Error, started[2].Error, started[3].Error}
	s.many("go-batches", 3, "")
	jobs := s.poll("go-batches", 10)
	job := func(n int) (string, int32) { return jobs[n].Id, jobs[n].Attempt }
	id0, attempt0 := job(0)
	id1, attempt1 := job(1)
	id2, attempt2 := job(2)
	beats := must(s.worker.HeartbeatJobs(s.ctx, &penstock.HeartbeatJobsRequest{WorkerId: "go", Heartbeats: []*penstock.Heartbeat{
		{JobId: id1, Attempt: attempt1, LeaseSeconds: 3600, Checkpoint: []byte(`{"at":1}`)}, {JobId: id0, Attempt: 7},
	}})).Results
	until := time.Until(beats[0].LockExpiresAt.AsTime()).Minutes()
	s.saw["heartbeats"] = []any{beats[0].Outcome.String(), until > 55 && until < 61, beats[1].Outcome.String()}
	s.saw["completed"] = outcomes(must(s.worker.CompleteJobs(s.ctx, &penstock.CompleteJobsRequest{
		WorkerId: "go", Completions: []*penstock.Completion{
			{JobId: id0, Attempt: attempt0, Variables: []byte(`{"big":123456789012345678901}`)},
			{JobId: id0, Attempt: attempt0}, {JobId: "1-2-3", Attempt: 1}, {JobId: id1, Attempt: 9}, {JobId: id1, Variables: []byte("[]")},
		},
	})).Results)
	s.saw["failed"] = outcomes(must(s.worker.FailJobs(s.ctx, &penstock.FailJobsRequest{
		WorkerId: "go", Failures: []*penstock.Failure{{JobId: id1, Attempt: attempt1, Retryable: true, ErrorMessage: "later"}, {}},
	})).Results)
	s.saw["released"] = outcomes(must(s.worker.ReleaseJobs(s.ctx, &penstock.ReleaseJobsRequest{
		WorkerId: "go", Releases: []*penstock.Release{{JobId: id2, Attempt: attempt2}, {JobId: id0, Attempt: attempt0}},
	})).Results)
	retries := map[string]int32{}
	for _, again := range s.poll("go-batches", 10) {
		retries[map[string]string{id1: "failed", id2: "released"}[again.Id]] = again.RetriesRemaining
	}
	s.saw["retries left"] = retries
	done := must(s.worker.StartInstances(s.ctx, &penstock.StartInstancesRequest{Items: []*penstock.StartItem{
		{DefinitionId: "go-batches", IdempotencyKey: "once"}, {DefinitionId: "go-batches", IdempotencyKey: "once"},
	}})).Results
	s.saw["once"] = done[0].Instance.Id == done[1].Instance.Id
}

func (s *subject) credit() {
	s.upload("go-credit", task("a", "go-credit", "end", 0))
	s.many("go-credit", 8, `{"n":9007199254740993}`)
	stream := s.work(s.ctx, "go-credit", 5, 600)
	first := stream.jobs(5)[0]
	lease := time.Until(first.LockExpiresAt.AsTime()).Minutes()
	s.saw["job"] = []any{
		first.JobType, first.StepId, first.Attempt, string(first.Variables), lease > 9 && lease < 11, recent(first.CreatedAt),
	}
	stream.send(&penstock.WorkRequest{Credits: []*penstock.Credit{{JobType: "go-credit", Jobs: 2}}})
	stream.jobs(7)
	s.many("go-credit", 3, "")
	// Neither the eighth nor the new ones came: what is left is 0, and the answer to taking back says so.
	stream.send(&penstock.WorkRequest{Credits: []*penstock.Credit{{JobType: "go-credit", Jobs: -1}}})
	stream.until(func() bool { return len(stream.all.Credits) == 1 })
	s.saw["never more"] = []any{len(stream.all.Jobs), stream.all.Credits[0].JobType, stream.all.Credits[0].Jobs}
	// Born while the stream waits: pushed at once.
	stream.send(&penstock.WorkRequest{Credits: []*penstock.Credit{{JobType: "go-credit", Jobs: 6}}})
	stream.jobs(11)
	s.many("go-credit", 2, "")
	s.saw["pushed"] = len(stream.jobs(13))
	s.saw["half-closed"] = stream.finish()
	s.saw["given back"] = s.back("go-credit", 13)
}

func (s *subject) results() {
	s.upload("go-results", task("a", "go-results", "end", 3))
	s.many("go-results", 4, "")
	stream := s.work(s.ctx, "go-results", 4, 600)
	jobs := stream.jobs(4)
	stream.send(&penstock.WorkRequest{
		Completions: []*penstock.Completion{
			{JobId: jobs[0].Id, Attempt: 1, Variables: []byte(`{"done":true}`)}, {JobId: jobs[0].Id, Attempt: 1},
			{JobId: jobs[1].Id, Attempt: 8}, {JobId: "1-2-3"}, {JobId: jobs[1].Id, Attempt: 1, Variables: []byte("7")},
		},
		Failures:   []*penstock.Failure{{JobId: jobs[2].Id, Attempt: 1, Retryable: true, ErrorMessage: "later"}},
		Releases:   []*penstock.Release{{JobId: jobs[3].Id, Attempt: 1}},
		Heartbeats: []*penstock.Heartbeat{{JobId: jobs[1].Id, Attempt: 1, LeaseSeconds: 900, Progress: []byte("0.5")}},
	})
	s.saw["outcomes"] = stream.outcomes(7)
	stream.until(func() bool { return len(stream.all.Heartbeats) == 1 })
	s.saw["heartbeat"] = []any{stream.all.Heartbeats[0].Outcome.String(), stream.all.Heartbeats[0].JobId == jobs[1].Id}
	stream.send(&penstock.WorkRequest{Credits: []*penstock.Credit{{JobType: "go-results", Jobs: 2}}})
	again := map[string]bool{}
	for _, job := range stream.jobs(6)[4:] {
		again[job.Id] = job.Attempt == 2
	}
	s.saw["again"] = []bool{again[jobs[2].Id], again[jobs[3].Id]}
	// Many results at once, each answered in order, and what was sent before the half-close is answered before the end.
	s.many("go-results", 1_000, "")
	stream.send(&penstock.WorkRequest{Credits: []*penstock.Credit{{JobType: "go-results", Jobs: 1_000}}})
	many := stream.jobs(1_006)[6:]
	for begin := 0; begin < len(many); begin += 100 {
		request := &penstock.WorkRequest{}
		for _, job := range many[begin : begin+100] {
			request.Completions = append(request.Completions, &penstock.Completion{JobId: job.Id, Attempt: job.Attempt})
		}
		stream.send(request)
	}
	s.saw["end"] = stream.finish()
	inOrder := 0
	for place, outcome := range stream.all.Outcomes[7:] {
		if outcome.JobId == many[place].Id && outcome.Outcome == penstock.Outcome_OUTCOME_OK {
			inOrder++
		}
	}
	s.saw["in order"] = inOrder
}

func (s *subject) losses() {
	s.upload("go-losses", task("a", "go-losses", "end", 0))
	s.many("go-losses", 2, "")
	short := s.work(s.ctx, "go-losses", 1, 1) // the engine of this test allows leases of a second
	lost := short.jobs(1)[0]
	long := s.work(s.ctx, "go-losses", 1, 600)
	held := long.jobs(1)[0]
	must(s.engine.CancelInstance(s.ctx, &workflow.CancelInstanceRequest{Id: held.InstanceId}))
	long.until(func() bool { return len(long.all.Cancellations) == 1 })
	cancelled := long.all.Cancellations[0]
	s.saw["cancelled"] = []any{cancelled.JobId == held.Id, cancelled.Attempt, cancelled.Reason != ""}
	long.send(&penstock.WorkRequest{Completions: []*penstock.Completion{{JobId: held.Id, Attempt: 1}}})
	s.saw["its result"] = long.outcomes(1)
	s.saw["long end"] = long.finish()
	short.until(func() bool { return len(short.all.LeaseLosses) == 1 })
	s.saw["lost"] = []any{short.all.LeaseLosses[0].JobId == lost.Id, short.all.LeaseLosses[0].Attempt}
	s.saw["short end"] = short.finish()
}

// back polls until so many jobs of a stream that ended are there; how many came at which attempt.
func (s *subject) back(jobType string, count int) map[int32]int {
	found, attempts := 0, map[int32]int{}
	for found < count && s.ctx.Err() == nil {
		for _, job := range s.poll(jobType, 100) {
			found++
			attempts[job.Attempt]++
		}
	}
	return attempts
}

// broken: a stream whose client has gone gives its jobs back at once, long before the lease ends; and refusals.
func (s *subject) broken() {
	s.upload("go-broken", task("a", "go-broken", "end", 0))
	s.many("go-broken", 5, "")
	ctx, cancel := context.WithCancel(s.ctx)
	stream := s.work(ctx, "go-broken", 5, 3600)
	stream.jobs(5)
	cancel()
	s.saw["back at once"] = s.back("go-broken", 5)
	nameless := must(s.worker.Work(s.ctx))
	nameless.Send(&penstock.WorkRequest{})
	s.saw["no worker"] = code(nameless.Recv())
	typeless := s.work(s.ctx, "", 1, 0)
	s.saw["no job type"] = code(typeless.Recv())
}
