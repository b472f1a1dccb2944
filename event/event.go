package event

import "fmt"

// Event describes one action of a rank. Kind determines which fields apply; the others are zero.
type Event struct {
	// Number is the index of the event in the pool's history or in the group. A pool's event
	// outside the history has the number of the next event in the history.
	Number uint64
	// Group is the id of the group or of the pool's domain (the group that shares it), or empty.
	Group string
	// Pool is an id. Without a domain, it is unique only on this rank.
	Pool uint64
	// Site is the file:line of the call, if call sites are recorded. Ranks do not compare it.
	Site string

	// Offset is in bytes from the start of the segment.
	Offset int64
	// Size and Requested are the size and the requested size of a block or segment, in bytes. In a
	// KindNote, Size is the number, and Requested is the kind that the program gave it.
	Size      int64
	Requested int64
	Stream    uint32
	// Segment is an ordinal, or -1 if there is no segment.
	Segment int32

	Call *Call
	// Operation is the method that compares values, such as "Agree".
	Operation string
	// Name is the name of a value, " step" for a step, or the id of the group of a registration or
	// scope.
	Name string
	// Value is an integer, a Boolean as 0 or 1, the bits of a float, or part of a text's digest.
	Value int64
	// Text is the name of a step, the quoted beginning of a text, or the error of a fault.
	Text string
	// Collectives counts the collectives of the rank since its previous step.
	Collectives uint64

	// Rank is a rank of the world.
	Rank int32
	Kind Kind
}

// Same reports whether e and o are equal except for Rank and Site.
func (e Event) Same(o Event) bool {
	isSameCall := e.Call == o.Call // true if both are nil
	if e.Call != nil && o.Call != nil {
		isSameCall = *e.Call == *o.Call
	}

	e.Rank, e.Site, e.Call = o.Rank, o.Site, o.Call
	return isSameCall && e == o
}

// SameFree reports whether e and o free the same block, perhaps with different kinds.
func (e *Event) SameFree(o *Event) bool {
	return e.Kind.isFree() && o.Kind.isFree() && e.Segment == o.Segment &&
		e.Offset == o.Offset && e.Size == o.Size
}

// SameRequest reports whether e and o are the same request, perhaps with different places.
func (e *Event) SameRequest(o *Event) bool {
	return e.Kind == o.Kind && e.Stream == o.Stream &&
		e.Requested == o.Requested && e.Size == o.Size
}

// Kind classifies an event. The numbers of kinds must not change, because they are stored in traces
// and sent to other ranks.
type Kind uint8

// Events in the history of a pool. A pool maps segments of memory, and allocates blocks in them.
// Its history must be the same on all ranks that share it.
const (
	KindSegment Kind = iota + 1 // a segment was mapped
	KindAlloc                   // a block was allocated
	KindFree                    // a block was freed, and can be allocated again
	KindReturn                  // a parked or deferred block can be allocated again
	KindPark                    // a block was freed, but is parked while a captured graph uses it
	KindDefer                   // a block was freed, but is deferred while other streams may use it
	KindTrim                    // a segment was removed from the pool
	KindReserve                 // memory was reserved for later blocks of a stream
	KindNote                    // the program added a number to the history

	kindHistoryEnd
)

// Other events of a pool, which ranks do not compare. The program begins and ends scopes. The end
// of a scope with a group registers the pool's new segments with the group.
const (
	KindUse     Kind = iota + kindHistoryEnd // another stream used a block
	KindRelease                              // the memory of a segment was unmapped
	// KindRestart means that all ranks restored the same state of the pool after a fault. A
	// KindRelease follows for each removed segment.
	KindRestart
	KindRegister     // a segment was registered with a group
	KindDeregister   // a registration ended
	KindScopeBegin   // a scope began
	KindScopeEnd     // a scope ended; a KindRegister follows for each new segment
	KindScopeAbandon // a scope ended without registrations

	kindPoolEnd
)

// Events of a group.
const (
	KindCollective Kind = iota + kindPoolEnd // a collective, Send or Recv was submitted
	KindInteger                              // the ranks compared or combined integers
	KindFlag                                 // like KindInteger, for Booleans
	KindFloat                                // like KindInteger, for floats
	KindText                                 // like KindInteger, for strings
	KindStep                                 // a step of the program began
	KindFault                                // the group failed

	kindEnd
)

var kindNames = [kindEnd]string{
	KindSegment: "segment",
	KindAlloc:   "alloc",
	KindFree:    "free",
	KindReturn:  "return",
	KindPark:    "parked free",
	KindDefer:   "deferred free",
	KindTrim:    "trim",
	KindReserve: "reserve",
	KindNote:    "note",

	KindUse:          "use",
	KindRelease:      "release",
	KindRestart:      "restart",
	KindRegister:     "register",
	KindDeregister:   "deregister",
	KindScopeBegin:   "scope begin",
	KindScopeEnd:     "scope end",
	KindScopeAbandon: "scope abandon",

	KindCollective: "collective",
	KindInteger:    "integer",
	KindFlag:       "flag",
	KindFloat:      "float",
	KindText:       "text",
	KindStep:       "step",
	KindFault:      "fault",
}

// String returns the name of the kind, such as "parked free" for KindPark.
func (k Kind) String() string {
	if k > 0 && k < kindEnd {
		return kindNames[k]
	}

	return fmt.Sprintf("kind %d", uint8(k))
}

// InHistory reports whether the history of a pool contains events of this kind.
func (k Kind) InHistory() bool { return k > 0 && k < kindHistoryEnd }

// IsGroupEvent reports whether events of this kind belong to a group, not to a pool.
func (k Kind) IsGroupEvent() bool { return k >= kindPoolEnd && k < kindEnd }

// isPlacement reports whether events of this kind place or reserve memory.
func (k Kind) isPlacement() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

func (k Kind) isScope() bool { return k >= KindScopeBegin && k <= KindScopeAbandon }

func (k Kind) isFree() bool { return k == KindFree || k == KindPark || k == KindDefer }
