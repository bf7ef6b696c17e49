// Judges histories of threads with Porcupine, a checker of linearizability.
//
// Standard input has one operation a line, as JSON. Standard output is a JSON object: "Ok",
// "Illegal" or "Unknown" for each thread. The state of a thread is the id of its head.
package main

import (
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = time.Minute

type operation struct {
	Thread, Parent, ID string
	// "read", "ok" or "conflict" of a save, or "unknown": it was executed at most once, at any
	// time after its beginning.
	Outcome      string
	Begun, Ended int64
}

func step(state, input, _ interface{}) (bool, interface{}) {
	head, it := state.(string), input.(operation)
	fits := head == it.Parent
	switch it.Outcome {
	case "read":
		return head == it.ID, head
	case "ok":
		return fits, it.ID
	case "conflict":
		return !fits, head
	}
	if fits {
		return true, it.ID
	}
	return true, head
}

func main() {
	histories := map[string][]porcupine.Operation{}
	for lines := json.NewDecoder(os.Stdin); ; {
		var it operation
		if err := lines.Decode(&it); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		histories[it.Thread] = append(histories[it.Thread], porcupine.Operation{
			ClientId: len(histories[it.Thread]), Input: it, Call: it.Begun, Return: it.Ended,
		})
	}
	model := porcupine.Model{Init: func() interface{} { return "" }, Step: step}
	verdicts := map[string]porcupine.CheckResult{}
	for thread, history := range histories {
		verdicts[thread] = porcupine.CheckOperationsTimeout(model, history, limit)
	}
	if err := json.NewEncoder(os.Stdout).Encode(verdicts); err != nil {
		log.Fatal(err)
	}
}
