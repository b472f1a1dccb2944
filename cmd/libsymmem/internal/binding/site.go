package binding

import (
	"sync"

	"symmem/internal/ledger"
)

// siteTable assigns each call site of the process a number that is valid in all worlds.
type siteTable struct {
	mu    sync.RWMutex
	names *ledger.Sites // nil until number is called; guarded by mu
}

// number returns the number of a call site, such as "train.py:12". The same text has the same
// number.
func (t *siteTable) number(text string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names == nil {
		t.names = ledger.NewSites()
	}

	return t.names.Intern(0, text)
}

// text returns the call site with a number, or "" if there is none.
func (t *siteTable) text(number uint32) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.names == nil {
		return ""
	}

	return t.names.At(number)
}
