package control

import "symmem/driver"

// Messages is what a Plane can do besides if its ranks are on one machine: it knows the messages
// that go between two of them. The data moves elsewhere, as that of collectives does.
//
// The n-th Send of one rank to another belongs to the n-th Recv there. Calls for one peer and
// direction are made one at a time.
type Messages interface {
	// Offer numbers this rank's end of the next message, from 1, and shows it to the peer.
	Offer(call *driver.Call) (number uint64)
	// Answered tells whether the peer has shown its end of a message.
	Answered(call *driver.Call, number uint64) bool
	// Differs tells whether the digest of the peer's end is another one. It knows only of a Recv
	// that was Answered, and of the latest thousands of messages.
	Differs(call *driver.Call, number uint64) bool
	// Lost tells whether the process of a rank of the group has ended.
	Lost(peer int) bool
}
