// Package driver defines the interfaces between symmem and its backends, which provide memory,
// streams and communicators. The code above these interfaces is the same for all backends. Package
// drivertest contains the contract that each backend must pass.
//
// A backend implements mechanisms and makes no decisions: callers choose the memory to map, the
// segments to register, and the path of each collective. Callers also decide whether ranks agree,
// by comparing ledgers; a backend only transports the comparison and reports the result.
//
// Callers check calls with Call.Validate, and make sure that the windows of a call contain its
// buffers, before they pass the call to a backend. A backend reports calls that it does not support
// (see Offer) and repeats none of these checks.
//
// All backends treat misplaced buffers in the same way. A peer's address is the peer's window base
// plus the caller's own offset, so a buffer at another offset on another rank gives wrong sums
// unless calls are compared. The host backend behaves exactly like a GPU in this respect.
//
// Methods are safe for concurrent use unless documented otherwise. Every wait for a peer has a
// deadline: that of the method's context, or Config.Timeout for methods without a context.
package driver
