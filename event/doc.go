// Package event describes what a rank does: it places memory, registers it, calls collectives,
// compares values and fails. symmem.Options.OnEvent receives every [Event].
//
// # Design
//
// One type describes everything that happens, so that a report, an agreement between ranks and a
// trace show the same fact in the same words:
//
//   - The pools' histories (internal/ledger) store placement events in a packed form and compute
//     their digest from the same words. A history returns them as Events again.
//   - Agreements between ranks exchange placement events and calls of collectives in the encodings
//     of [Append] and [AppendCall]. The digest that ranks compare with a call covers its encoding.
//   - [Event.AppendText] prints events for error messages, reports and traces.
//
// An Event is a flat value. Kind determines which fields apply; the others are zero. Its strings
// are interned or constant, and Call points to the description that a group keeps with the prepared
// call, so recording an event allocates nothing, except for a fault, whose text is formatted. What
// an Event refers to never changes: a consumer may keep a copy of the Event.
//
// # Order and locks
//
// Each pool and each group numbers its events. The pool's lock orders those of a pool. Under that
// lock an event is appended to a queue of the pool. The call that finds no other goroutine
// delivering takes the queue, releases the lock, calls OnEvent for each event, and repeats that
// until the queue is empty; a call that finds another goroutine delivering returns without waiting,
// and the other goroutine delivers its events. So OnEvent receives the events of one pool, and
// those of one group, in the order of their numbers, one at a time, and no library lock is held.
// Events of different pools or groups may be delivered concurrently.
//
// OnEvent may therefore call symmem, from its own goroutine or another one, and wait for it. An
// event that it causes in the pool or group whose event it handles is delivered after it has
// returned. The exception is Close of a pool and of the Runtime: they wait for calls that use the
// pool, which may include the one that delivers, and return a TimeoutError then.
//
// A panic in OnEvent is logged with its stack and consumes that event only. After runtime.Goexit in
// OnEvent the next call on the pool or group delivers the events that remain. A queue grows while
// OnEvent is slower than the goroutines that add to it. A fault is delivered on its own goroutine,
// which may still run when Close returns.
package event
