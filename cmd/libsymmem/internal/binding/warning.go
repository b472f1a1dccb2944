package binding

import (
	"encoding/json"
	"slices"
	"sync"

	"symmem"
)

// maxWarnings is the maximum number of stored warnings. A new one then replaces the oldest one.
const maxWarnings = 64

// warnings stores warnings until TakeWarning returns them, even after Close.
type warnings struct {
	counters *Counters

	mu     sync.Mutex
	stored []string // oldest first; guarded by mu
}

// lateDetail is the JSON of a warning about ranks for which this rank waits.
type lateDetail struct {
	Kind     string         `json:"kind"`
	Message  string         `json:"message"`
	Group    string         `json:"group"`
	InCall   string         `json:"doing"`
	WaitedMS int64          `json:"waited_ms"`
	Ranks    []int          `json:"ranks"`
	Activity map[int]string `json:"activity"` // what the late ranks do, if it is known
}

// addLate stores a warning about late ranks.
func (w *warnings) addLate(late symmem.LateWarning) {
	text, err := json.Marshal(lateDetail{
		Kind: "late", Message: late.String(), Group: late.Group, InCall: late.InCall,
		WaitedMS: late.Waited.Milliseconds(), Ranks: nonNilCopy(late.Ranks),
		Activity: late.Activity,
	})
	if err != nil {
		return // cannot happen: all fields are strings and numbers
	}

	w.add(string(text))
	w.counters.Warnings.Add(1)
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.stored) == maxWarnings {
		w.stored = slices.Delete(w.stored, 0, 1)
	}

	w.stored = append(w.stored, text)
}

// TakeWarning calls take with the oldest stored warning as JSON, or with "" if there is none. It
// removes the warning if take returns true.
func (w *warnings) TakeWarning(take func(text string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.stored) == 0 {
		take("")
		return
	}

	isTaken := take(w.stored[0])
	if isTaken {
		w.stored = w.stored[1:]
	}
}
