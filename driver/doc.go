// Package driver is the seam between symmem and the places where memory, streams and
// communicators come from. A backend implements these interfaces; everything above them is the
// same for all backends, and driver/drivertest holds the contract that each backend passes.
//
// A backend is a mechanism without a policy. It maps what it is told to map, registers what it
// is told to register and runs the collective it is handed on the path it is handed. Whether two
// ranks mean the same thing is decided above, by comparing ledgers; a backend only carries the
// comparison and reports what it saw.
//
// Calls have been checked before a backend gets them, by Call.Validate, and the windows that they
// name hold their buffers. A backend says what it cannot do (Offer), and checks nothing else again.
//
// A backend is honest about mistakes: peers are addressed as peer base plus the caller's own
// offset, so a buffer that lies elsewhere on another rank gives wrong sums unless somebody
// checks. The host backend behaves exactly like a GPU here.
//
// Unless a method says otherwise it is safe for use by several goroutines at once. Nothing waits
// without a deadline: methods with a context end when it ends, all others by Config.Timeout.
package driver
