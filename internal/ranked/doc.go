// Package ranked provides locks that check the order in which they are taken.
//
// A lock is a Mutex, an RWMutex or a Spin of a Class: a type without a value, whose Rank gives the
// lock a name and a position. A goroutine takes locks in rising order. Each package lists its
// classes in one file, and its documentation names them in the same order.
//
// In builds with the tag invariants every Lock checks the locks that its goroutine holds and panics
// if the order is broken, whether or not the lock is contended. The message contains the stack that
// took the first lock, the stack that asks for the second, and, if one was seen, the stack of a
// goroutine that took the two in the right order. Waiting panics if the goroutine holds a lock that
// must not be held while ranks wait for each other. TryLock never waits, so it may be called in any
// order; a lock that it has taken counts as held.
//
// In other builds the three are sync.Mutex, sync.RWMutex and spin.Lock, and Waiting does nothing.
//
// The zero value of each is an unlocked lock. None may be copied after its first use.
package ranked

// Rank is the place of a lock in the order.
type Rank struct {
	// Order is the place: who holds a lock takes only locks of a higher Order, from 1 to
	// MaxOrder. No two classes have the same.
	Order int
	// Name is the lock's name in messages and in documentation, such as "symmem.Pool.mu".
	Name string
	// Waits says that the lock may be held while this rank waits for another one.
	Waits bool
	// Many reports that a goroutine may hold several locks of the class, in an order that its package
	// defines.
	Many bool
}

// MaxOrder is the highest Order.
const MaxOrder = 127

// Base is the position after which the locks of a package start.
type Base int

// The bases: callers before those they call.
const (
	Root Base = 0
	NCCL Base = 30
	Host Base = 80
	SHM  Base = 100
)

// At is the place of a lock that is never held while this rank waits for another one.
func (b Base) At(place int, name string) Rank { return Rank{Order: int(b) + place, Name: name} }

// Waiting is the place of a lock that may be held while this rank waits for another one.
func (b Base) Waiting(place int, name string) Rank {
	return Rank{Order: int(b) + place, Name: name, Waits: true}
}

// Class is a kind of lock, such as the mutex of every pool.
type Class interface{ Rank() Rank }
