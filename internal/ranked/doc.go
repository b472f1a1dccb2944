// Package ranked provides locks that check the order in which they are acquired. Each lock has a
// Class, an empty type whose Rank method returns the lock's name and its position in the order.
// Each package lists its classes in locks.go and, in the same order, in doc.go.
//
// In builds with the tag invariants, Lock panics if the order is violated, even without contention.
// TryLock may be called in any order, but its lock counts as held. The zero value of each type is
// an unlocked lock. A lock must not be copied after its first use.
package ranked

// Rank describes the position of a lock in the order.
type Rank struct {
	// Order is the position, from 1 to MaxOrder. It differs for every class.
	Order   int
	Name    string // for example "symmem.Pool.mu"
	CanWait bool   // may be held while this process waits for another process
	// AllowsSeveral permits a goroutine to hold several locks of the class, in an order that the
	// class's package defines.
	AllowsSeveral bool
}

// MaxOrder is the highest Order.
const MaxOrder = 127

// Base is added to the positions of a package's locks, so that packages use different Orders.
type Base int

// A package has a lower base than the packages that it calls.
const (
	Root Base = 0
	NCCL Base = 30
	Host Base = 80
	SHM  Base = 100
)

// At returns the Rank of a lock that is never held while this process waits for another process.
func (b Base) At(position int, name string) Rank {
	return Rank{Order: int(b) + position, Name: name}
}

// Waiting returns the Rank of a lock that may be held while this process waits for another process.
func (b Base) Waiting(position int, name string) Rank {
	return Rank{Order: int(b) + position, Name: name, CanWait: true}
}

// Class identifies a kind of lock, for example the mutexes of all pools.
type Class interface{ Rank() Rank }
