// go run worker.go: does jobs of the type greeting.say. Needs Go 1.20, and nothing else.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"time"
)

var url = os.Getenv("PENSTOCK_URL")

type job struct {
	ID        string         `json:"id"`
	Attempt   int            `json:"attempt"`
	Variables map[string]any `json:"variables"`
}

func call(path string, body, answer any) error {
	data, _ := json.Marshal(body)
	response, err := http.Post(url+path, "application/json", bytes.NewReader(data))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

func main() {
	for {
		var polled struct{ Jobs []job }
		poll := map[string]any{"workerId": "go-1", "jobTypes": []string{"greeting.say"}, "maxJobs": 10, "waitSeconds": 20}
		if err := call("/v1/jobs/poll", poll, &polled); err != nil {
			log.Print(err) // the engine is away: ask again
			time.Sleep(time.Second)
		}
		for _, each := range polled.Jobs {
			result := map[string]any{"greeting": "Hello, " + each.Variables["name"].(string)}
			done := map[string]any{"workerId": "go-1", "attempt": each.Attempt, "variables": result}
			var refused any
			if err := call("/v1/jobs/"+each.ID+"/complete", done, &refused); err != nil || refused != nil {
				log.Print(each.ID, err, refused)
			}
		}
	}
}
