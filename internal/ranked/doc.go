// Package ranked holds locks that know their place in the order in which locks are taken.
//
// A lock is a Mutex, an RWMutex or a Spin of a Class: a type without a value, whose Rank says what
// the lock is called and where it stands. A goroutine takes locks in rising order. Each package
// lists its classes in one file, and its documentation names them in the same order.
//
// In builds with the tag invariants every Lock looks at what its goroutine holds and panics where
// the order is broken, whether or not anybody else is there to wait for. The message has the stack
// that took the first lock, the stack that asks for the second, and, where one was seen, the stack
// of a goroutine that took the two in the right order. Waiting panics where a lock is held that is
// not one that may be held while ranks wait for each other. TryLock never waits, so it may be
// called in any order; what it has taken counts as held.
//
// In other builds the three are sync.Mutex, sync.RWMutex and spin.Lock, and Waiting does nothing.
//
// The zero value of each is a free lock. None may be copied after its first use.
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
	// Many says that a goroutine may hold several of the class, in an order of their own.
	Many bool
}

// MaxOrder is the highest Order.
const MaxOrder = 127

// Base is what the orders of a package's locks begin behind.
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
