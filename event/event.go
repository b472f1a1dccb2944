package event

// Event describes one action of a rank. Kind determines which fields apply; the others are zero.
type Event struct {
	// Number orders the events of a pool or a group. In a pool, it is the event's position in the
	// history, counted from 0; an event that is not part of the history has the number of the next
	// event in the history.
	Number uint64
	// Group is the id of the group. If the event belongs to a pool, it is the id of the pool's
	// domain, or "" if the pool has none.
	Group string
	// Pool is the id of the pool. Each rank numbers its pools without a domain separately.
	Pool uint64
	// Site is the line of code that caused the event, as file:line, or "" if call sites are not
	// recorded. Ranks do not compare sites, because they may reach the same state from different
	// lines.
	Site string

	// Offset is the distance in bytes from the start of the segment.
	Offset int64
	// Size is the number of bytes that the block or segment occupies.
	Size int64
	// Requested is the number of bytes that the caller requested.
	Requested int64
	// Stream is the number of the stream.
	Stream uint32
	// Segment is the ordinal of the segment, or -1 if there is none.
	Segment int32

	Call *Call
	// Operation is the name of the call that compared or combined a value, such as "Agree".
	Operation string
	// Name is the name of a value. For a registration or a scope, it is the id of the group.
	Name string
	// Value is an integer, a Boolean as 0 or 1, or the bits of a float. For a text or a step, it is
	// a part of the text's digest.
	Value int64
	// Text is the name of a step, the quoted beginning of a text that was compared, or the error of
	// a fault.
	Text string
	// Collectives is the number of collectives that the rank has launched since its previous step.
	Collectives uint64

	// Rank is the world rank on which the event occurred.
	Rank int32
	Kind Kind
}

// Same reports whether e and o describe the same event on two ranks, that is, whether they differ
// at most in Rank and Site.
func (e Event) Same(o Event) bool {
	if (e.Call == nil) != (o.Call == nil) || e.Call != nil && *e.Call != *o.Call {
		return false
	}
	e.Rank, e.Site, e.Call = o.Rank, o.Site, o.Call
	return e == o
}

// SameFree reports whether e and o free the same block. Their kinds (free, parked free, deferred
// free) may differ.
func (e *Event) SameFree(o *Event) bool {
	return e.Kind.frees() && o.Kind.frees() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o result from the same request, even if it was satisfied
// differently.
func (e *Event) SameRequest(o *Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}
