// Package ranked provides locks that check the order in which they are acquired.
//
// A lock is a Mutex, an RWMutex or a Spin with a Class: a type without a value, whose Rank method
// returns the name of the lock and its position in the order. A goroutine acquires locks in
// ascending order. Each package lists its classes in one file, and its documentation lists them in
// the same order.
//
// In builds with the tag invariants every Lock checks the locks that its goroutine holds and panics
// if the order is violated, whether or not the lock is contended. The message contains the stack
// that acquired the first lock, the stack that requests the second, and, if one was seen, the stack
// of a goroutine that acquired the two in the right order. Waiting panics if the goroutine holds a
// lock that must not be held while ranks wait for each other. TryLock never waits, so it may be
// called in any order; a lock that it has acquired counts as held.
//
// In other builds the three are sync.Mutex, sync.RWMutex and spin.Lock, and Waiting does nothing.
//
// The zero value of each is an unlocked lock. None may be copied after its first use.
package ranked

// Rank describes the position of a lock in the order.
type Rank struct {
	// Order is the position, from 1 to MaxOrder: while it holds the lock, a goroutine acquires only
	// locks with a higher Order. No two classes have the same Order.
	Order int
	// Name is the lock's name in messages and in documentation, such as "symmem.Pool.mu".
	Name string
	// Waits is set if the lock may be held while this rank waits for another one.
	Waits bool
	// Many is set if a goroutine may hold several locks of the class, in an order that its package
	// defines.
	Many bool
}

// MaxOrder is the highest Order.
const MaxOrder = 127

// Base is the Order after which the locks of a package start.
type Base int

// The bases. Callers precede the packages that they call.
const (
	Root Base = 0
	NCCL Base = 30
	Host Base = 80
	SHM  Base = 100
)

// At returns the Rank of a lock that is never held while this rank waits for another one.
func (b Base) At(place int, name string) Rank { return Rank{Order: int(b) + place, Name: name} }

// Waiting returns the Rank of a lock that may be held while this rank waits for another one.
func (b Base) Waiting(place int, name string) Rank {
	return Rank{Order: int(b) + place, Name: name, Waits: true}
}

// Class identifies a kind of lock, such as the mutex of every pool.
type Class interface{ Rank() Rank }
