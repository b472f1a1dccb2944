package control

import "time"

// Grace is how long work that all ranks have submitted gets to end after one of them has failed.
const Grace = 100 * time.Millisecond

// Mourning measures Grace. The zero value is ready to use, by one goroutine.
type Mourning struct{ since time.Time }

// Over is asked again and again with whether a peer has failed, and tells when Grace is over.
func (m *Mourning) Over(forsaken bool) bool {
	switch {
	case !forsaken:
		return false
	case m.since.IsZero():
		m.since = time.Now()
		return false
	}
	return time.Since(m.since) >= Grace
}
