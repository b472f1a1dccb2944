package binding

import (
	"encoding/json"
	"sync"

	"symmem"
)

// When maxWarnings are stored, a new warning replaces the oldest one.
const maxWarnings = 64

// warnings stores warnings until TakeWarning returns them, even after Close.
type warnings struct {
	counters *Counters

	mu     sync.Mutex
	stored []string // oldest first; guarded by mu
}

type lateDetail struct {
	Kind     string         `json:"kind"`
	Message  string         `json:"message"`
	Group    string         `json:"group"`
	InCall   string         `json:"doing"`
	WaitedMS int64          `json:"waited_ms"`
	Ranks    []int          `json:"ranks"`
	Activity map[int]string `json:"activity"`
}

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
		w.stored = append(w.stored[:0], w.stored[1:]...)
	}
	w.stored = append(w.stored, text)
}

// TakeWarning calls take with the oldest stored warning as JSON, or with "" if there is none. It
// removes the warning if take returns true.
func (w *warnings) TakeWarning(take func(text string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := ""
	if len(w.stored) > 0 {
		text = w.stored[0]
	}
	if take(text) && text != "" {
		w.stored = w.stored[1:]
	}
}
