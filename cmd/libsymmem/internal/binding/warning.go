package binding

import (
	"encoding/json"
	"sync"

	"symmem"
)

// mostWarnings is how many warnings are kept for whoever takes them; the oldest give way.
const mostWarnings = 64

// warnings are those that nobody has taken yet, the oldest first. They outlive Close.
type warnings struct {
	words *Words // count them

	mu      sync.Mutex
	waiting []string // guarded by mu
}

// lateDetail is a warning of ranks that are late, as JSON has it.
type lateDetail struct {
	Kind     string         `json:"kind"`
	Message  string         `json:"message"`
	Group    string         `json:"group"`
	Doing    string         `json:"doing"`
	WaitedMS int64          `json:"waited_ms"`
	Ranks    []int          `json:"ranks"`
	Activity map[int]string `json:"activity"`
}

// late notes a warning, and counts it for those that read words.
func (w *warnings) late(of symmem.LateWarning) {
	text, err := json.Marshal(lateDetail{
		Kind: "late", Message: of.String(), Group: of.Group, Doing: of.Doing,
		WaitedMS: of.Waited.Milliseconds(), Ranks: ranks(of.Ranks), Activity: of.Activity,
	})
	if err != nil {
		return // of strings and numbers, which cannot fail
	}
	w.add(string(text))
	w.words.Warnings.Add(1)
}

func (w *warnings) add(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == mostWarnings {
		w.waiting = append(w.waiting[:0], w.waiting[1:]...)
	}
	w.waiting = append(w.waiting, text)
}

// TakeWarning calls a function with the oldest warning that nobody has taken, as JSON, or with an
// empty text, and forgets the warning if the function says that it was taken.
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
