// Package ranked provides locks that check the order in which they are acquired.
//
// A lock is a Mutex, an RWMutex or a Spin with a Class. A Class is an empty type. Its Rank
// method returns the lock's name and its position in the order. Goroutines must acquire locks
// in ascending order. Each package lists its classes in one file and, in the same order, in its
// documentation.
//
// In builds with the tag invariants, every Lock checks which locks its goroutine already holds.
// If the order is violated, Lock panics, even if the lock is not contended. The panic message
// contains the stack that acquired the first lock and the stack that requests the second lock.
// If any goroutine has acquired the two locks in the right order before, the message also
// contains the stack that did so. Waiting panics if the goroutine holds a lock that must not be
// held while ranks wait for each other. TryLock never waits, so it may be called in any order,
// but a lock that it has acquired counts as held.
//
// In other builds, Mutex, RWMutex and Spin only wrap sync.Mutex, sync.RWMutex and spin.Lock,
// and Waiting does nothing.
//
// The zero value of each type is an unlocked lock. A lock must not be copied after its first use.
package ranked

// Rank describes the position of a lock in the order.
type Rank struct {
	// Order is the position, from 1 to MaxOrder. A goroutine that holds the lock may acquire only
	// locks with a higher Order. Every class has a different Order.
	Order int
	// Name identifies the lock in messages and in documentation, for example "symmem.Pool.mu".
	Name string
	// Waits is set if the lock may be held while this process waits for another rank.
	Waits bool
	// Many is set if a goroutine may hold several locks of the class. The class's package defines
	// the order in which they are acquired.
	Many bool
}

// MaxOrder is the highest Order.
const MaxOrder = 127

// Base is added to the positions of a package's locks, so that different packages use different
// Orders.
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
