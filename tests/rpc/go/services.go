// Every call of workflow.v1.WorkflowEngine on a real engine, as tests/runtime/test_go_services.py wants it: what was
// seen is printed as JSON and judged there. One function for each subject; each has job types and ids of its own.
package main

import (
	"context"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstock "penstock.test/client/pb/penstock"
	workflow "penstock.test/client/pb/workflow"
)

type seen = map[string]any

type subject struct {
	ctx    context.Context
	conn   *grpc.ClientConn
	engine workflow.WorkflowEngineClient
	worker penstock.WorkerClient
	saw    seen
}

func realServices(addr string) seen {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	conn := dial(addr)
	defer conn.Close()
	all := seen{}
	for name, run := range map[string]func(*subject){
		"definitions": (*subject).definitions, "instances": (*subject).instances, "jobs": (*subject).jobs,
		"failures": (*subject).failures, "tasks": (*subject).tasks, "lists": (*subject).lists,
		"statuses": (*subject).statuses, "sizes": (*subject).sizes, "batches": (*subject).batches,
		"credit": (*subject).credit, "results": (*subject).results, "losses": (*subject).losses,
		"broken": (*subject).broken,
	} {
		s := &subject{ctx, conn, workflow.NewWorkflowEngineClient(conn), penstock.NewWorkerClient(conn), seen{}}
		run(s)
		all[name] = s.saw
	}
	return all
}

func fields(value any) *structpb.Struct { return must(structpb.NewStruct(value.(map[string]any))) }

func task(id, jobType, next string, retries int32) *workflow.WorkflowStep {
	return &workflow.WorkflowStep{
		Id: id, Name: id, Type: workflow.StepType_STEP_TYPE_SERVICE_TASK, JobType: jobType, NextStep: next, RetryCount: retries,
	}
}

func end() *workflow.WorkflowStep {
	return &workflow.WorkflowStep{Id: "end", Name: "end", Type: workflow.StepType_STEP_TYPE_END}
}

func (s *subject) upload(id string, steps ...*workflow.WorkflowStep) {
	definition := &workflow.WorkflowDefinition{Id: id, Name: id, Steps: append(steps, end())}
	must(s.engine.UploadDefinition(s.ctx, &workflow.UploadDefinitionRequest{Definition: definition}))
}

func (s *subject) start(id string, variables map[string]any) *workflow.WorkflowInstance {
	request := &workflow.StartInstanceRequest{DefinitionId: id, Variables: fields(variables)}
	return must(s.engine.StartInstance(s.ctx, request)).Instance
}

func (s *subject) get(id string) *workflow.WorkflowInstance {
	return must(s.engine.GetInstance(s.ctx, &workflow.GetInstanceRequest{Id: id})).Instance
}

func (s *subject) poll(jobType string, count int32) []*workflow.Job {
	request := &workflow.PollJobsRequest{WorkerId: "go", JobTypes: []string{jobType}, MaxJobs: count, LeaseSeconds: 60}
	return must(s.engine.PollJobs(s.ctx, request)).Jobs
}

func (s *subject) complete(job string, variables map[string]any) error {
	request := &workflow.CompleteJobRequest{JobId: job, WorkerId: "go", VariablesToSet: fields(variables)}
	_, err := s.engine.CompleteJob(s.ctx, request)
	return err
}

func recent(stamp *timestamppb.Timestamp) bool {
	return stamp != nil && math.Abs(time.Since(stamp.AsTime()).Seconds()) < 120
}

func (s *subject) definitions() {
	kinds := workflow.StepType_STEP_TYPE_UNSPECIFIED.Descriptor().Values().Len()
	boundary := &workflow.BoundaryEvent{
		Type: workflow.BoundaryEventType_BOUNDARY_EVENT_TYPE_TIMER, Duration: "PT1H", Interrupting: true, TargetStepId: "u",
	}
	first := task("a", "go-definitions", "d", 3)
	first.Description, first.DelegateClass, first.BoundaryEvents = "first", "com.x.Y", []*workflow.BoundaryEvent{boundary}
	step := func(id string, kind workflow.StepType, next string) *workflow.WorkflowStep {
		return &workflow.WorkflowStep{Id: id, Name: id, Type: kind, NextStep: next}
	}
	user := step("u", workflow.StepType_STEP_TYPE_USER_TASK, "d")
	user.JobType = "label"
	decision := step("d", workflow.StepType_STEP_TYPE_DECISION, "")
	decision.ConditionalNextSteps = map[string]string{"1 == 1": "fork", "true": "end"}
	fork := step("fork", workflow.StepType_STEP_TYPE_PARALLEL_GATEWAY, "")
	fork.ParallelNextSteps, fork.JoinStep = []string{"b", "w"}, "join"
	shape := step("t", workflow.StepType_STEP_TYPE_TRANSFORMATION, "end")
	shape.Transformations = map[string]*structpb.Value{
		"made": structpb.NewStringValue("${1 + 1}"), "n": structpb.NewNumberValue(3), "none": structpb.NewNullValue(),
		"o": structpb.NewStructValue(fields(map[string]any{"x": []any{}, "a": 1, "m": 2})),
	}
	sent := &workflow.WorkflowDefinition{
		Id: "LOS::go", Name: "Loan", Description: "pays", AutoStartNextWorkflow: true, NextWorkflowId: "other",
		Metadata: fields(map[string]any{"z": []any{1, map[string]any{"deep": nil}}, "a": 2.5}),
		Steps: []*workflow.WorkflowStep{
			first, user, decision, fork, task("b", "go-definitions", "join", 0),
			step("w", workflow.StepType_STEP_TYPE_WAIT, "join"), step("join", workflow.StepType_STEP_TYPE_JOIN_GATEWAY, "t"),
			shape, end(),
		},
	}
	answer := must(s.engine.UploadDefinition(s.ctx, &workflow.UploadDefinitionRequest{Definition: sent}))
	same := true // Go writes the entries of a map in another order each time
	for range 10 {
		again := must(s.engine.UploadDefinition(s.ctx, &workflow.UploadDefinitionRequest{Definition: sent}))
		same = same && proto.Equal(answer, again)
	}
	found := must(s.engine.GetDefinition(s.ctx, &workflow.GetDefinitionRequest{Id: "LOS::go"})).Definition
	sent.Version = 1
	list := must(s.engine.ListDefinitions(s.ctx, &workflow.ListDefinitionsRequest{Keyword: "los::GO"}))
	sent.Description = "pays more"
	changed := must(s.engine.UploadDefinition(s.ctx, &workflow.UploadDefinitionRequest{Definition: sent}))
	sent.Description = "pays"
	old := must(s.engine.GetDefinition(s.ctx, &workflow.GetDefinitionRequest{Id: "LOS::go", Version: 1})).Definition
	s.saw["kinds"] = kinds
	s.saw["uploaded"] = []any{answer.Id, answer.Version, recent(answer.UploadedAt)}
	s.saw["same again"] = same
	s.saw["comes back"] = []bool{proto.Equal(found, sent), proto.Equal(old, sent)}
	s.saw["listed"] = []any{len(list.Definitions), list.Total, proto.Equal(list.Definitions[0], found)}
	s.saw["changed"] = changed.Version
}

func (s *subject) instances() {
	s.upload("go-instances", task("a", "go-instances", "end", 0))
	variables := map[string]any{"n": 3, "x": 2.5, "list": []any{nil, true, "é☃"}, "deep": map[string]any{"k": -7}}
	request := &workflow.StartInstanceRequest{
		DefinitionId: "go-instances", DefinitionVersion: 1, Variables: fields(variables), BusinessKey: "key",
	}
	started := must(s.engine.StartInstance(s.ctx, request)).Instance
	s.saw["started"] = []any{
		started.DefinitionId, started.DefinitionVersion, started.Status.String(), started.CurrentStepIds,
		started.BusinessKey, recent(started.StartedAt), started.CompletedAt == nil, started.FailureReason,
	}
	s.saw["variables"] = started.Variables.AsMap()
	s.saw["read"] = proto.Equal(started, s.get(started.Id))
	cancel := &workflow.CancelInstanceRequest{Id: started.Id, Reason: "no more"}
	ended := must(s.engine.CancelInstance(s.ctx, cancel)).Instance
	s.saw["cancelled"] = []any{ended.Status.String(), ended.FailureReason, recent(ended.CompletedAt), len(ended.CurrentStepIds)}
	s.saw["again"] = code(s.engine.CancelInstance(s.ctx, cancel))
}

func (s *subject) jobs() {
	s.upload("go-jobs", task("a", "go-jobs", "b", 2), task("b", "go-jobs", "end", 0))
	started := s.start("go-jobs", map[string]any{"n": 3})
	s.start("go-jobs", map[string]any{"second": true})
	unset := must(s.engine.PollJobs(s.ctx, &workflow.PollJobsRequest{WorkerId: "go", JobTypes: []string{"go-jobs"}})).Jobs
	job := unset[0]
	lease := job.LockExpiresAt.AsTime().Sub(time.Now()).Seconds()
	s.saw["one by default"] = len(unset)
	s.saw["job"] = []any{
		job.JobType, job.InstanceId == started.Id, job.StepId, job.StepExecutionId == job.Id, job.RetriesRemaining,
		job.Attempt, lease > 20 && lease < 31, job.Variables.AsMap(),
	}
	s.saw["nobody else's"] = []int{len(s.poll("go-jobs-unknown", 10)), len(s.poll("go-jobs", 10))}
	thief := &workflow.CompleteJobRequest{JobId: job.Id, WorkerId: "thief"}
	s.saw["thief"] = code(s.engine.CompleteJob(s.ctx, thief))
	s.saw["done"] = code(nil, s.complete(job.Id, map[string]any{"paid": 12, "x": nil}))
	s.saw["repeat"] = code(nil, s.complete(job.Id, map[string]any{"paid": 13}))
	last := s.poll("go-jobs", 10)[0]
	s.saw["next"] = []any{last.StepId, last.Variables.AsMap()}
	s.saw["end"] = code(nil, s.complete(last.Id, nil))
	done := s.get(started.Id)
	s.saw["ended"] = []any{done.Status.String(), recent(done.CompletedAt), len(done.CurrentStepIds), done.Variables.AsMap()}
	history := must(s.engine.GetInstanceHistory(s.ctx, &workflow.GetInstanceHistoryRequest{Id: started.Id})).Executions
	items := [][]any{}
	for _, item := range history {
		items = append(items, []any{
			item.StepId, item.StepType.String(), item.AttemptNumber, item.Status.String(), recent(item.StartedAt),
			recent(item.EndedAt), item.InstanceId == started.Id, item.FailureReason,
		})
	}
	s.saw["history"] = items
	s.saw["history ids"] = []bool{history[0].Id == job.StepExecutionId, history[1].Id == last.StepExecutionId}
}

func (s *subject) failures() {
	s.upload("go-failures", task("a", "go-failures", "end", 1))
	started := s.start("go-failures", nil)
	job := s.poll("go-failures", 1)[0]
	fail := func(worker string, retryable bool) string {
		return code(s.engine.FailJob(s.ctx, &workflow.FailJobRequest{
			JobId: job.Id, WorkerId: worker, Retryable: retryable, ErrorMessage: "broken: é",
		}))
	}
	s.saw["by a stranger"] = []any{fail("stranger", false), s.get(started.Id).Status.String()}
	s.saw["retryable"] = fail("go", true)
	again := s.poll("go-failures", 1)[0]
	s.saw["again"] = []any{again.Id == job.Id, again.Attempt, again.RetriesRemaining}
	s.saw["for good"] = fail("go", false)
	view := s.get(started.Id)
	s.saw["failed"] = []any{view.Status.String(), strings.Contains(view.FailureReason, "broken: é"), recent(view.CompletedAt)}
}

func (s *subject) tasks() {
	user := &workflow.WorkflowStep{Id: "u", Name: "u", Type: workflow.StepType_STEP_TYPE_USER_TASK, NextStep: "w"}
	wait := &workflow.WorkflowStep{Id: "w", Name: "w", Type: workflow.StepType_STEP_TYPE_WAIT, NextStep: "end"}
	s.upload("go-tasks", user, wait)
	started := s.start("go-tasks", map[string]any{"a": 1})
	finish := func(step string) string {
		return code(s.engine.CompleteUserTask(s.ctx, &workflow.CompleteUserTaskRequest{
			InstanceId: started.Id, UserTaskStepId: step, CompletedBy: "me", Result: fields(map[string]any{"b": 2}),
		}))
	}
	signal := func(step string) string {
		return code(s.engine.SignalWait(s.ctx, &workflow.SignalWaitRequest{
			InstanceId: started.Id, WaitStepId: step, Variables: fields(map[string]any{"c": 3}),
		}))
	}
	s.saw["parked"] = []any{started.Status.String(), started.CurrentStepIds}
	s.saw["not there yet"] = signal("w")
	s.saw["wrong kinds"] = []string{signal("u"), finish("w")}
	s.saw["finished"] = []string{finish("u"), finish("u"), finish("nowhere")}
	s.saw["signalled"] = []string{signal("w"), signal("w")}
	done := s.get(started.Id)
	s.saw["ended"] = []any{done.Status.String(), done.Variables.AsMap()}
	s.saw["too late"] = finish("u")
}

func (s *subject) lists() {
	s.upload("go-lists", task("a", "go-lists", "end", 0))
	ids := []string{}
	for range 5 {
		ids = append(ids, s.start("go-lists", nil).Id)
	}
	must(s.engine.CancelInstance(s.ctx, &workflow.CancelInstanceRequest{Id: ids[1]}))
	list := func(request *workflow.ListInstancesRequest) []any {
		request.DefinitionId = "go-lists"
		page := must(s.engine.ListInstances(s.ctx, request))
		places := []int{}
		for _, item := range page.Instances {
			for place, id := range ids {
				if id == item.Id {
					places = append(places, place)
				}
			}
		}
		return []any{places, page.Total}
	}
	s.saw["newest first"] = list(&workflow.ListInstancesRequest{})
	s.saw["pages"] = []any{
		list(&workflow.ListInstancesRequest{PageSize: 2}), list(&workflow.ListInstancesRequest{Page: 2, PageSize: 2}),
		list(&workflow.ListInstancesRequest{Page: 9, PageSize: 2}),
	}
	s.saw["cancelled"] = list(&workflow.ListInstancesRequest{Status: workflow.InstanceStatus_INSTANCE_STATUS_CANCELLED})
	s.saw["no such key"] = list(&workflow.ListInstancesRequest{BusinessKey: "none"})
	for _, id := range []string{"go-lists-2", "go-lists-3"} {
		s.upload(id, task("a", "go-lists", "end", 0))
	}
	second := must(s.engine.ListDefinitions(s.ctx, &workflow.ListDefinitionsRequest{Keyword: "GO-LISTS", Page: 1, PageSize: 2}))
	s.saw["definitions"] = []any{len(second.Definitions), second.Total}
}

func (s *subject) statuses() {
	e, ctx := s.engine, s.ctx
	s.saw["unknown"] = []string{
		code(e.GetDefinition(ctx, &workflow.GetDefinitionRequest{Id: "nothing"})),
		code(e.GetInstance(ctx, &workflow.GetInstanceRequest{Id: "1f"})),
		code(e.GetInstanceHistory(ctx, &workflow.GetInstanceHistoryRequest{Id: "1f"})),
		code(e.CancelInstance(ctx, &workflow.CancelInstanceRequest{Id: "1f"})),
		code(e.StartInstance(ctx, &workflow.StartInstanceRequest{DefinitionId: "nothing"})),
		code(e.CompleteJob(ctx, &workflow.CompleteJobRequest{JobId: "1-2-3", WorkerId: "go"})),
		code(e.FailJob(ctx, &workflow.FailJobRequest{JobId: "1-2-3", WorkerId: "go"})),
		code(e.CompleteUserTask(ctx, &workflow.CompleteUserTaskRequest{InstanceId: "1f", UserTaskStepId: "u"})),
		code(e.SignalWait(ctx, &workflow.SignalWaitRequest{InstanceId: "1f", WaitStepId: "w"})),
	}
	s.saw["missing"] = []string{
		code(e.UploadDefinition(ctx, &workflow.UploadDefinitionRequest{})),
		code(e.GetDefinition(ctx, &workflow.GetDefinitionRequest{})),
		code(e.GetInstance(ctx, &workflow.GetInstanceRequest{})),
		code(e.GetInstanceHistory(ctx, &workflow.GetInstanceHistoryRequest{})),
		code(e.CancelInstance(ctx, &workflow.CancelInstanceRequest{})),
		code(e.StartInstance(ctx, &workflow.StartInstanceRequest{})),
		code(e.PollJobs(ctx, &workflow.PollJobsRequest{WorkerId: "go"})),
		code(e.PollJobs(ctx, &workflow.PollJobsRequest{JobTypes: []string{"t"}})),
		code(e.CompleteJob(ctx, &workflow.CompleteJobRequest{JobId: "1-2-3"})),
		code(e.FailJob(ctx, &workflow.FailJobRequest{WorkerId: "go"})),
		code(e.CompleteUserTask(ctx, &workflow.CompleteUserTaskRequest{InstanceId: "1f"})),
		code(e.SignalWait(ctx, &workflow.SignalWaitRequest{WaitStepId: "w"})),
	}
	odd := task("a", "t", "end", 0)
	odd.Type = 99
	_, err := e.UploadDefinition(ctx, &workflow.UploadDefinitionRequest{
		Definition: &workflow.WorkflowDefinition{Id: "odd", Name: "odd", Steps: []*workflow.WorkflowStep{odd, end()}},
	})
	s.saw["unknown enums"] = []any{
		code(nil, err), strings.Contains(err.Error(), "99"),
		code(e.ListInstances(ctx, &workflow.ListInstancesRequest{Status: 77})),
	}
	broken := &workflow.WorkflowDefinition{Id: "broken", Name: "b", Steps: []*workflow.WorkflowStep{
		task("a", "t", "nowhere", -1), {Id: "d", Name: "d", Type: workflow.StepType_STEP_TYPE_DECISION}, end(),
	}}
	_, err = e.UploadDefinition(ctx, &workflow.UploadDefinitionRequest{Definition: broken})
	text := status.Convert(err).Message()
	s.saw["all problems"] = []any{
		code(nil, err), strings.Contains(text, "nowhere"), strings.Contains(text, "retryCount"),
		strings.Contains(text, "conditionalNextSteps"),
	}
	s.saw["negative page"] = code(e.ListDefinitions(ctx, &workflow.ListDefinitionsRequest{Page: -1}))
	nope := s.conn.Invoke(ctx, "/workflow.v1.WorkflowEngine/Nope", &emptypb.Empty{}, &emptypb.Empty{})
	s.saw["no such method"] = code(nil, nope)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	s.saw["cancelled"] = code(e.GetInstance(gone, &workflow.GetInstanceRequest{Id: "1f"}))
}

func (s *subject) sizes() {
	s.upload("go-sizes", task("a", "go-sizes", "end", 0))
	text := strings.Repeat("é", 1_900_000)
	started := s.start("go-sizes", map[string]any{"text": text})
	job := s.poll("go-sizes", 1)[0]
	s.saw["large"] = []bool{
		started.Variables.Fields["text"].GetStringValue() == text, job.Variables.Fields["text"].GetStringValue() == text,
	}
	request := &workflow.StartInstanceRequest{
		DefinitionId: "go-sizes", Variables: fields(map[string]any{"text": strings.Repeat("x", 5_000_000)}),
	}
	s.saw["too large"] = code(s.engine.StartInstance(s.ctx, request))
	deep := structpb.NewBoolValue(true)
	for range 20 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	request.Variables = &structpb.Struct{Fields: map[string]*structpb.Value{"deep": deep}}
	nested := must(s.engine.StartInstance(s.ctx, request)).Instance
	s.saw["deep"] = proto.Equal(nested.Variables, request.Variables)
	for range 40 {
		deep = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{deep}})
	}
	request.Variables = &structpb.Struct{Fields: map[string]*structpb.Value{"deep": deep}}
	s.saw["too deep"] = code(s.engine.StartInstance(s.ctx, request))
	s.saw["goes on"] = s.get(started.Id).Status.String()
}

// deadline asks for jobs while somebody holds the table: the statement waits, the deadline passes.
func deadline(addr string, jobType string) seen {
	s := &subject{ctx: context.Background(), conn: dial(addr), saw: seen{}}
	defer s.conn.Close()
	ctx, cancel := context.WithTimeout(s.ctx, 500*time.Millisecond)
	defer cancel()
	request := &workflow.PollJobsRequest{WorkerId: "late", JobTypes: []string{jobType}, MaxJobs: 10}
	began := time.Now()
	s.saw["code"] = code(workflow.NewWorkflowEngineClient(s.conn).PollJobs(ctx, request))
	s.saw["in time"] = time.Since(began) < 5*time.Second
	return s.saw
}
