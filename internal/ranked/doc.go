// Package ranked provides locks that check the order in which they are acquired.
//
// A lock is a Mutex, an RWMutex or a Spin with a Class, which is an empty type. The Rank method of
// the class returns the lock's name and its position in the order. Goroutines must acquire locks in
// ascending order. Each package lists its classes in locks.go and, in the same order, in doc.go.
//
// In builds with the tag invariants, Lock panics if the order is violated, even if the lock is not
// contended. The message contains the stacks that acquired the two locks. Waiting panics if the
// goroutine holds a lock that must not be held while ranks wait for each other. TryLock never
// waits, so it may be called in any order, but a lock that it has acquired counts as held.
//
// In other builds, nothing is checked.
//
// The zero value of each type is an unlocked lock. A lock must not be copied after its first use.
package ranked

// Rank describes the position of a lock in the order.
type Rank struct {
	// Order is the position, from 1 to MaxOrder, and differs for every class. A goroutine that
	// holds the lock may acquire only locks with a higher Order.
	Order int
	Name  string // for example "symmem.Pool.mu"
	Waits bool   // whether the lock may be held while this process waits for another rank
	// Many is set if a goroutine may hold several locks of the class. The class's package defines
	// the order in which they are acquired.
	Many bool
}

// MaxOrder is the highest Order.
const MaxOrder = 127

// Base is added to the positions of a package's locks, so that packages use different Orders.
type Base int

// The bases of the packages. A package has a lower base than the packages that it calls.
const (
	Root Base = 0
	NCCL Base = 30
	Host Base = 80
	SHM  Base = 100
)

// At returns the Rank of a lock that is never held while this process waits for another rank.
func (b Base) At(position int, name string) Rank {
	return Rank{Order: int(b) + position, Name: name}
}

// Waiting returns the Rank of a lock that may be held while this process waits for another rank.
func (b Base) Waiting(position int, name string) Rank {
	return Rank{Order: int(b) + position, Name: name, Waits: true}
}

// Class identifies a kind of lock, for example the mutexes of all pools.
type Class interface{ Rank() Rank }
