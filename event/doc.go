// Package event describes the actions of a rank: it places and registers memory, calls
// collectives, compares values with other ranks, and reports faults. symmem.Options.OnEvent
// receives every [Event].
//
// # Design
//
// One type describes all actions, so that reports, comparisons between ranks, and traces
// describe the same action in the same words:
//
//   - The histories of pools (internal/ledger) store placement events in a packed form, and compute
//     digests of that form. They return the events as Events again.
//   - When ranks compare histories or calls, they exchange placement events and calls to
//     collectives in the encodings of [Append] and [AppendCall], or digests of these encodings.
//   - [Event.AppendText] formats events for error messages, reports and traces.
//
// An Event is a flat value. Kind determines which fields apply; the others are zero. Recording
// an event, except for a fault, allocates no memory, because the strings are interned or
// constant, and Call points to a description that the group keeps. The strings and the Call
// never change, so a consumer may keep a copy of the Event.
//
// # Order and locks
//
// Each pool and each group numbers its events and has a queue for them. A call into symmem adds
// its events to the queue while it holds the lock of the pool or group. If another goroutine is
// already delivering events, it will deliver these too, and the call returns without waiting.
// Otherwise, the call itself removes the queued events, releases the lock, and calls OnEvent for
// each of them. It repeats this until the queue is empty. OnEvent therefore receives the events
// of a pool or a group one at a time, in the order of their numbers, while symmem holds no lock.
// Events of different pools or groups may be delivered concurrently.
//
// Consequently, OnEvent may call symmem, or wait for another goroutine that does. If OnEvent
// causes an event in the pool or group whose event it is handling, the new event is delivered
// after OnEvent has returned. However, OnEvent must not wait for Close of a pool or of the
// Runtime. Close waits for the calls that use the pool, and the call that is delivering the
// event may be one of them, so Close would return a TimeoutError.
//
// If OnEvent panics, symmem logs the panic with its stack and continues with the next event. If
// OnEvent calls runtime.Goexit, the next call on the pool or group delivers the remaining
// events. While OnEvent is slower than the goroutines that add events, the queue grows. Faults
// are delivered on a separate goroutine, which may still be running when Close returns.
package event
