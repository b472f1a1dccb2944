package event

// Event describes one action of a rank. Kind determines which fields apply; the others are zero.
type Event struct {
	// Number is the event's position in the pool's history, or its number in the group, from 0.
	// Events of a pool outside its history have the number of the next event in the history.
	Number uint64
	// Group is the id of the group or, for an event of a pool, of the pool's domain, if any.
	Group string
	// Pool is the id of the pool. Ranks number their pools without a domain separately.
	Pool uint64
	// Site is the line of code that caused the event, as file:line, if call sites are recorded.
	// Ranks do not compare sites.
	Site string

	// Offset is in bytes from the start of the segment.
	Offset int64
	// Size and Requested are numbers of bytes: those that the block or segment occupies, and those
	// that the caller requested.
	Size      int64
	Requested int64
	Stream    uint32
	// Segment is an ordinal, or -1 if there is no segment.
	Segment int32

	Call *Call
	// Operation is the name of a call on a value, such as "Agree".
	Operation string
	// Name is the name of a value. For a registration or a scope, it is the id of the group.
	Name string
	// Value is an integer, a Boolean as 0 or 1, or the bits of a float. For a text or a step, it is
	// a part of the text's digest.
	Value int64
	// Text is the name of a step, the quoted beginning of a text, or the error of a fault.
	Text string
	// Collectives is the number of collectives that the rank has launched since its previous step.
	Collectives uint64

	// Rank is the world rank on which the event occurred.
	Rank int32
	Kind Kind
}

// Same reports whether e and o differ at most in Rank and Site.
func (e Event) Same(o Event) bool {
	if (e.Call == nil) != (o.Call == nil) || e.Call != nil && *e.Call != *o.Call {
		return false
	}
	e.Rank, e.Site, e.Call = o.Rank, o.Site, o.Call
	return e == o
}

// SameFree reports whether e and o free the same block, even with different kinds of free.
func (e *Event) SameFree(o *Event) bool {
	return e.Kind.isFree() && o.Kind.isFree() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o result from the same request, even if it was satisfied
// differently.
func (e *Event) SameRequest(o *Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}
