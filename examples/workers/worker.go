// go run worker.go: does jobs of the type greeting.say. Needs Go 1.20, and nothing else.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

var (
	url      = "http://127.0.0.1:8080"
	token    = os.Getenv("PENSTOCK_TOKEN")
	workerID = fmt.Sprintf("go-%d", os.Getpid())
	client   = &http.Client{Timeout: 30 * time.Second} // a poll waits 20
)

type job struct {
	ID        string `json:"id"`
	Attempt   int    `json:"attempt"`
	Variables any    `json:"variables"`
}

type badInput struct{ error } // what trying again does not repair

type refused struct { // an answer that is not 2xx
	status int
	text   string
}

func (r refused) Error() string { return fmt.Sprintf("%d %s", r.status, r.text) }

func say(variables map[string]any) (map[string]any, error) {
	name, ok := variables["name"].(string)
	if !ok {
		return nil, badInput{errors.New("the variable name is missing, or no text")}
	}
	return map[string]any{"greeting": "Hello, " + name}, nil
}

func call(path string, body any) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest(http.MethodPost, url+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if response.StatusCode/100 != 2 {
		return nil, refused{response.StatusCode, fmt.Sprintf("%.500s", text)}
	}
	return text, err
}

// A handler that panics fails its job, not the worker.
func try(variables map[string]any) (result json.RawMessage, err error) {
	defer func() {
		if broken := recover(); broken != nil {
			err = fmt.Errorf("panic: %v", broken)
		}
	}()
	made, err := say(variables)
	if err != nil {
		return nil, err
	}
	return json.Marshal(made)
}

func work(each job) {
	report, body := "/complete", map[string]any{"workerId": workerID, "attempt": each.Attempt}
	variables, _ := each.Variables.(map[string]any) // none where they are no object
	if result, err := try(variables); err != nil {
		log.Print("job ", each.ID, ": ", err)
		report, body["errorMessage"], body["retryable"] = "/fail", err.Error(), !errors.As(err, &badInput{})
	} else {
		body["variables"] = result
	}
	for tries := 1; tries <= 5; tries++ { // twice is once: what got no answer is said again
		_, err := call("/v1/jobs/"+each.ID+report, body)
		if err == nil {
			return
		}
		log.Print("job ", each.ID, ": ", err)
		if no := (refused{}); errors.As(err, &no) && no.status < 500 && no.status != 429 {
			return // 409: it is another's now
		}
		time.Sleep(time.Second)
	}
}

func main() {
	if given := os.Getenv("PENSTOCK_URL"); given != "" {
		url = given
	}
	poll := map[string]any{"workerId": workerID, "jobTypes": []string{"greeting.say"}, "maxJobs": 10, "leaseSeconds": 60, "waitSeconds": 20}
	for {
		var polled struct{ Jobs []json.RawMessage }
		text, err := call("/v1/jobs/poll", poll)
		if err == nil {
			err = json.Unmarshal(text, &polled)
		}
		if err == nil && polled.Jobs == nil {
			err = errors.New("the answer to a poll has no jobs")
		}
		if err != nil { // the engine is away, or refuses us: ask again, but not at once
			log.Print(err)
			time.Sleep(time.Second)
			continue
		}
		for _, each := range polled.Jobs {
			var given job // each alone: one that is none takes no other with it
			if err := json.Unmarshal(each, &given); err != nil || given.ID == "" {
				log.Printf("no job, but %.500s", each)
				continue
			}
			work(given)
		}
	}
}
