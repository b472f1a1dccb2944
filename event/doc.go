// Package event describes what a rank does: placement and registration of memory, collectives,
// comparisons of values, and faults. symmem.Options.OnEvent receives every [Event].
//
// # Design
//
// One type describes all actions, so that a report, an agreement between ranks and a trace describe
// the same action in the same words:
//
//   - The pools' histories (internal/ledger) store placement events in a packed form and compute
//     their digest from the same words. A history returns them as Events again.
//   - Agreements between ranks exchange placement events and calls of collectives in the encodings
//     of [Append] and [AppendCall]. The digest that ranks compare with a call covers its encoding.
//   - [Event.AppendText] formats events for error messages, reports and traces.
//
// An Event is a flat value. Kind determines which fields apply; the others are zero. Its strings
// are interned or constant, and Call points to the description that a group keeps with the prepared
// call, so recording an event allocates nothing. The exception is a fault, whose text has to be
// formatted. The strings and the Call never change, so a consumer may keep a copy of the Event.
//
// # Order and locks
//
// Each pool and each group numbers its events and has a queue for them. A call adds its events to
// the queue while it holds the lock of the pool or group. If no other goroutine is delivering
// events, the call removes the queued events, releases the lock, calls OnEvent for each of them,
// and repeats this until the queue is empty. Otherwise, the call returns without waiting, and the
// other goroutine delivers its events. OnEvent therefore receives the events of a pool or a group
// one at a time, in the order of their numbers, while symmem holds no lock. Events of different
// pools or groups may be delivered concurrently.
//
// Consequently, OnEvent may call symmem, or wait for another goroutine that does. It may itself
// cause an event in the pool or group whose event it is handling; that event is delivered after
// OnEvent has returned. But OnEvent must not wait for Close of a pool or of the Runtime: Close
// waits for the calls that use the pool, possibly including the call that is delivering the event,
// and would return a TimeoutError.
//
// If OnEvent panics, the panic is logged with its stack, and delivery continues with the next
// event. If OnEvent calls runtime.Goexit, the next call on the pool or group delivers the remaining
// events. A queue grows while OnEvent is slower than the goroutines that add events. Faults are
// delivered on a separate goroutine, which may still be running when Close returns.
package event
