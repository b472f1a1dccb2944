package event

import "fmt"

// Kind classifies an event.
type Kind uint8

// Events of a pool's history. Ranks exchange these values, so they must not change.
const (
	// KindSegment means that a segment was mapped at the next free offset of the pool.
	KindSegment Kind = iota + 1
	// KindAlloc means that a block was allocated.
	KindAlloc
	// KindFree means that a block was freed and can be reused at once.
	KindFree
	// KindReturn means that a block freed by KindPark or KindDefer can be reused.
	KindReturn
	// KindPark means that a block was freed while a captured graph used it.
	KindPark
	// KindDefer means that a block was freed, or released by the last graph that used it, while other
	// streams may still be using it.
	KindDefer
	// KindTrim means that a segment was removed from the pool.
	KindTrim
	// KindReserve means that memory was reserved.
	KindReserve
	// KindNote is a number that the caller recorded in the history.
	KindNote

	kindHistoryEnd
)

// Other events of a pool, which ranks do not compare.
const (
	// KindUse means that a stream uses a block of another stream.
	KindUse Kind = iota + kindHistoryEnd
	// KindRelease means that a segment was unmapped.
	KindRelease
	// KindRestart means that the ranks have restored the same state of the pool after a fault: its
	// history continues at Number. A KindRelease follows for each removed segment.
	KindRestart
	// KindRegister means that a segment was registered with the group Name.
	KindRegister
	// KindDeregister means that a registration ended.
	KindDeregister
	// KindScopeBegin means that a scope begins. Name is the id of its group, or empty if the scope
	// registers nothing.
	KindScopeBegin
	// KindScopeEnd means that a scope ends. A KindRegister follows for each new segment.
	KindScopeEnd
	// KindScopeAbandon means that a scope ends without registering memory.
	KindScopeAbandon

	kindPoolEnd
)

// Events of a group.
const (
	// KindCollective means that a collective, Send or Recv is about to be submitted.
	KindCollective Kind = iota + kindPoolEnd
	// KindInteger means that the ranks compared or combined an integer on the CPU.
	KindInteger
	// KindFlag is KindInteger for a Boolean.
	KindFlag
	// KindFloat is KindInteger for a float.
	KindFloat
	// KindText is KindInteger for a string.
	KindText
	// KindStep means that a step of the program begins.
	KindStep
	// KindFault means that the group has failed.
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

// String returns the name of k.
func (k Kind) String() string {
	if k == 0 || k >= kindEnd {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// InHistory reports whether events of kind k are part of a pool's history.
func (k Kind) InHistory() bool { return k > 0 && k < kindHistoryEnd }

// IsGroupEvent reports whether events of kind k belong to a group, not to a pool.
func (k Kind) IsGroupEvent() bool { return k >= kindPoolEnd && k < kindEnd }

func (k Kind) isPlacement() bool {
	return k == KindSegment || k == KindAlloc || k == KindReserve
}

func (k Kind) isFree() bool { return k == KindFree || k == KindPark || k == KindDefer }
