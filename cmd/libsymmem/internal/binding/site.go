package binding

import (
	"sync"

	"symmem/internal/ledger"
)

// siteTable assigns each call site of the process a number that is valid in all worlds.
type siteTable struct {
	mu    sync.RWMutex
	names *ledger.Sites // guarded by mu
}

func (t *siteTable) number(text string) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names == nil {
		t.names = ledger.NewSites()
	}
	return t.names.Intern(0, text)
}

func (t *siteTable) text(number uint32) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.names == nil {
		return ""
	}
	return t.names.At(number)
}
