package event

// Event describes one thing that a rank did. Kind determines which fields apply; the others are
// zero. Events are comparable with ==.
type Event struct {
	// Number orders the events of a pool: it is the position in the pool's history, from 0. An event
	// outside the history has the number of the event that follows it there.
	Number uint64
	// Pool is the id of the pool, and Group the id of its domain, empty for a pool without one.
	Pool  uint64
	Group string
	// Site is the line that caused the event, as file:line, where call sites are recorded. Ranks do
	// not compare it: they may reach the same state from different lines.
	Site string

	// Offset is the distance in bytes from the start of the segment.
	Offset int64
	// Size is the size that the block or segment occupies, in bytes.
	Size int64
	// Requested is the size that the caller requested, in bytes.
	Requested int64
	// Stream is the number of the stream for which it happened.
	Stream uint32
	// Segment is the ordinal of the segment, or -1 if the event concerns none.
	Segment int32

	// Rank is the world rank that did it.
	Rank int32
	Kind Kind
}

// Shared returns the event without the fields that may differ between ranks that did the same: Rank
// and Site.
func (e Event) Shared() Event {
	e.Rank, e.Site = 0, ""
	return e
}

// SameFree reports whether e and o free the same block, whether or not it was parked or deferred.
func (e *Event) SameFree(o *Event) bool {
	return e.Kind.frees() && o.Kind.frees() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o request the same, wherever it was placed.
func (e *Event) SameRequest(o *Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}
