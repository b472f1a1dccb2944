package event

// Event describes one thing that a rank did. Kind determines which fields apply; the others are
// zero.
type Event struct {
	// Number orders the events of a pool or a group. In a pool it is the position in the history,
	// from 0, and an event outside the history has the number of the event that follows it there.
	Number uint64
	// Group is the id of the group. For an event of a pool it is the pool's domain, and Pool is the
	// id of the pool. Without a domain Group is empty, and Pool counts the rank's pools of this kind.
	Group string
	Pool  uint64
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

	// Call describes the call of a collective.
	Call *Call
	// Operation names what ranks do with a value, such as "Agree".
	Operation string
	// Name is the name of a value, or the id of the group that registers or that a scope is for.
	Name string
	// Value is an integer, a truth value as 0 or 1, or the bits of a float. For a text or a step it
	// is part of the digest, and Text is the text, quoted and cut, or the step. For a fault Text is
	// the error.
	Value int64
	Text  string
	// Collectives counts those that the rank has launched since the previous step.
	Collectives uint64

	// Rank is the world rank that did it.
	Rank int32
	Kind Kind
}

// Same reports whether two ranks did the same: e and o differ at most in Rank and Site.
func (e Event) Same(o Event) bool {
	if (e.Call == nil) != (o.Call == nil) || e.Call != nil && *e.Call != *o.Call {
		return false
	}
	e.Rank, e.Site, e.Call = o.Rank, o.Site, o.Call
	return e == o
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
