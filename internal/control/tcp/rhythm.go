package tcp

import "time"

const (
	// asleep is how much time between two ticks of tellInterval means that this process was
	// stopped, or had no processor.
	asleep = 3 * tellInterval
	// listening is how many ticks a process has then to read what others have said.
	listening = 3
)

// rhythm knows from ticks whether this process has run of late. Where it has not, what others have
// said may lie unread, and it is this rank that is late. Its zero value has never run.
//
// A process that is stopped again and again, so that no tick comes in time, listens to every fourth
// one at the latest: nobody is excused forever.
type rhythm struct {
	last time.Time // when it last ticked
	left int       // how many ticks it still listens
}

// tick notes that the process runs, and reports whether it has listened for long enough just now.
func (r *rhythm) tick(now time.Time) (heard bool) {
	late := now.Sub(r.last) > asleep
	r.last = now
	switch {
	case r.left > 0:
		r.left--
		return r.left == 0
	case late:
		r.left = listening
	}
	return false
}

// deaf reports whether what others have said may lie unread.
func (r *rhythm) deaf(now time.Time) bool {
	return r.left > 0 || now.Sub(r.last) > asleep
}
