package event

import "fmt"

// Kind classifies an event. The numbers of kinds must not change, because they are stored in traces
// and sent to other ranks.
type Kind uint8

// Events in the history of a pool, which maps segments of memory and allocates blocks in them. All
// ranks that share a pool must have the same history.
const (
	KindSegment Kind = iota + 1 // a segment was mapped
	KindAlloc                   // a block was allocated
	KindFree                    // a block was freed, and can be allocated again
	KindReturn                  // a block freed by KindPark or KindDefer can be allocated again
	KindPark                    // a block was freed, but a captured graph still uses it
	KindDefer                   // a block was freed, but other streams may still be using it
	KindTrim                    // a segment was removed
	KindReserve                 // memory was reserved
	KindNote                    // the program recorded a number

	kindHistoryEnd // end of the kinds in a history
)

// Other events of a pool, which ranks do not compare. A scope is a part of the program. If it has a
// group, the pool's new segments are registered with the group at the end of the scope. In events
// of scopes and registrations, Event.Name is the id of the group.
const (
	KindUse     Kind = iota + kindHistoryEnd // another stream used a block
	KindRelease                              // a segment was unmapped
	// KindRestart means that all ranks restored the same state of the pool after a fault. The history
	// continues at Event.Number. A KindRelease follows for each removed segment.
	KindRestart
	KindRegister     // a segment was registered with a group
	KindDeregister   // a registration ended
	KindScopeBegin   // a scope began
	KindScopeEnd     // a scope ended; a KindRegister follows for each new segment
	KindScopeAbandon // a scope ended without registrations

	kindPoolEnd // end of the kinds of pools
)

// Events of a group.
const (
	KindCollective Kind = iota + kindPoolEnd // a collective, Send or Recv was submitted
	KindInteger                              // the ranks' integers were compared or combined
	KindFlag                                 // like KindInteger, for Booleans
	KindFloat                                // like KindInteger, for floats
	KindText                                 // like KindInteger, for strings
	KindStep                                 // a step of the program began
	KindFault                                // the group failed

	kindEnd // end of all kinds
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

// isPlacement reports whether events of this kind place or reserve memory. Their Size may differ
// from Requested.
func (k Kind) isPlacement() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

func (k Kind) isScope() bool { return k >= KindScopeBegin && k <= KindScopeAbandon }

func (k Kind) isFree() bool { return k == KindFree || k == KindPark || k == KindDefer }
