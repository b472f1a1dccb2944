package binding

import (
	"encoding/json"
	"sync"

	"symmem"
)

// maxWarnings bounds the number of stored warnings. The oldest are dropped first.
const maxWarnings = 64

// warnings stores warnings until TakeWarning returns them, oldest first, also across Close.
type warnings struct {
	words *Words // counts the warnings

	mu      sync.Mutex
	waiting []string // guarded by mu
}

// lateDetail holds the JSON of a warning about late ranks.
type lateDetail struct {
	Kind     string         `json:"kind"`
	Message  string         `json:"message"`
	Group    string         `json:"group"`
	Doing    string         `json:"doing"`
	WaitedMS int64          `json:"waited_ms"`
	Ranks    []int          `json:"ranks"`
	Activity map[int]string `json:"activity"`
}

// late stores a warning and counts it in the words.
func (w *warnings) late(of symmem.LateWarning) {
	text, err := json.Marshal(lateDetail{
		Kind: "late", Message: of.String(), Group: of.Group, Doing: of.Doing,
		WaitedMS: of.Waited.Milliseconds(), Ranks: ranks(of.Ranks), Activity: of.Activity,
	})
	if err != nil {
		return // cannot happen: all fields are strings and numbers
	}
	w.add(string(text))
	w.words.Warnings.Add(1)
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == maxWarnings {
		w.waiting = append(w.waiting[:0], w.waiting[1:]...)
	}
	w.waiting = append(w.waiting, text)
}

// TakeWarning calls take with the oldest stored warning, as JSON, or with an empty text. It removes
// the warning if take returns true.
func (w *warnings) TakeWarning(take func(text string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := ""
	if len(w.waiting) > 0 {
		text = w.waiting[0]
	}
	if take(text) && text != "" {
		w.waiting = w.waiting[1:]
	}
}
