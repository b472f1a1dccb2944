package event

import "fmt"

// Kind classifies an event.
type Kind uint8

// The kinds of events that form a pool's history, which ranks compare. The values must not change,
// because ranks send them to each other.
const (
	// KindSegment reports that a segment was mapped at the next free offset of the pool.
	KindSegment Kind = iota + 1
	// KindAlloc reports an allocation.
	KindAlloc
	// KindFree reports that a block was freed and can be reused immediately.
	KindFree
	// KindReturn reports that a block, which an earlier KindPark or KindDefer freed, can be reused.
	KindReturn
	// KindPark reports that a block was freed while a captured graph used it.
	KindPark
	// KindDefer reports that a block was freed, or released by the last graph that used it, while
	// other streams may still be using it.
	KindDefer
	// KindTrim reports that a segment was removed from the pool.
	KindTrim
	// KindReserve reports a reservation of memory.
	KindReserve
	// KindNote reports a number that the caller recorded in the history.
	KindNote

	kindHistoryEnd
)

// The kinds of events of a pool that are not part of its history. Ranks do not compare them.
const (
	// KindUse reports that a stream uses a block of another stream.
	KindUse Kind = iota + kindHistoryEnd
	// KindRelease reports that a segment was unmapped.
	KindRelease
	// KindRestart reports that, after a fault, the ranks have restored the same state of the pool.
	// The pool's history continues at Number, and live blocks remain allocated. A KindRelease
	// follows for each removed segment.
	KindRestart
	// KindRegister reports that a segment was registered with the group that Name identifies.
	KindRegister
	// KindDeregister reports that a registration ended.
	KindDeregister
	// KindScopeBegin reports the beginning of a scope, whose allocations are registered at its end.
	// Name is the id of the scope's group, or empty for a disabled scope, which registers nothing.
	KindScopeBegin
	// KindScopeEnd reports that a scope ends. A KindRegister follows for each new segment.
	KindScopeEnd
	// KindScopeAbandon reports that a scope ends without registering.
	KindScopeAbandon

	kindPoolEnd
)

// The kinds of events of a group.
const (
	// KindCollective reports that a collective, Send or Recv is about to be submitted.
	KindCollective Kind = iota + kindPoolEnd
	// KindInteger reports that the ranks compared or combined an integer on the CPU.
	KindInteger
	// KindFlag is like KindInteger, for a Boolean.
	KindFlag
	// KindFloat is like KindInteger, for a float.
	KindFloat
	// KindText is like KindInteger, for a string.
	KindText
	// KindStep reports that a step of the program begins.
	KindStep
	// KindFault reports that the group has failed.
	KindFault

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
	KindUse:     "use",
	KindRelease: "release",
	KindRestart: "restart",

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

// String returns the name of k in reports.
func (k Kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// InHistory reports whether events of kind k are part of a pool's history.
func (k Kind) InHistory() bool { return k > 0 && k < kindHistoryEnd }

// IsGroupEvent reports whether events of kind k belong to a group rather than a pool.
func (k Kind) IsGroupEvent() bool { return k >= kindPoolEnd && k < kindEnd }

func (k Kind) takesSpace() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

func (k Kind) isFree() bool { return k == KindFree || k == KindPark || k == KindDefer }
