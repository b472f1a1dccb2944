// Package driver defines the interfaces between symmem and its backends, which provide memory,
// streams and communicators. Package drivertest tests the contract that every backend must satisfy.
//
// A segment is a block of device memory that is mapped as a whole. A window registers a segment
// with a communicator, so that peers can access the segment.
//
// A backend makes no decisions. Callers choose the segments to map, the segments to register, and
// the path of each collective. They check each call with Call.Validate and make sure that the
// call's windows contain its buffers. A backend does not repeat these checks.
//
// A rank finds a peer's buffer by adding its own offset to the base of the peer's window. If the
// peer's buffer has a different offset, the result is wrong, and only a comparison of calls detects
// the mistake.
//
// Methods are safe for concurrent use unless documented otherwise. Every wait for a peer has a
// deadline: that of the method's context, or Config.Timeout for methods without a context.
package driver
