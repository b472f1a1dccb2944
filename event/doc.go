// Package event describes the actions of a rank: placement and registration of memory, collectives,
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
// An Event is a flat value. Kind determines the fields that apply; the others are zero. Its strings
// are interned or constant, and Call points to the description that a group keeps with the prepared
// call, so recording an event allocates nothing. The exception is a fault, whose text is formatted.
// The strings and the Call never change, so a consumer may keep a copy of the Event.
//
// # Order and locks
//
// Each pool and each group numbers its events and has a queue for them. A call adds its events to
// the queue under the lock of the pool or group. If no other goroutine is delivering, the call
// removes the queued events, releases the lock, calls OnEvent for each, and repeats this until the
// queue is empty. Otherwise the call returns without waiting, and the other goroutine delivers its
// events. So OnEvent receives the events of a pool or a group one at a time, in the order of their
// numbers, while symmem holds no lock. Events of different pools or groups may be delivered
// concurrently.
//
// OnEvent may therefore call symmem, or wait for another goroutine that does. OnEvent may itself
// cause an event in the pool or group whose event it is handling. That event is delivered after
// OnEvent has returned. OnEvent must not wait for Close of a pool or of the Runtime: Close waits
// for calls that use the pool, which may include the call that is delivering the event, and would
// return a TimeoutError.
//
// If OnEvent panics, the panic is logged with its stack, and delivery continues with the next
// event. If OnEvent calls runtime.Goexit, the next call on the pool or group delivers the remaining
// events. A queue grows while OnEvent is slower than the goroutines that add events. A fault is
// delivered on a separate goroutine, which may still be running when Close returns.
package event
