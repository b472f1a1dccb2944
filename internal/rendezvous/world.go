package rendezvous

import (
	"fmt"
	"strings"
	"time"
)

// World describes a job as far as a process knows it before it communicates. Discover makes it,
// Connect uses it.
type World struct {
	// Rank is this process, from 0 to Size-1.
	Rank, Size int
	// LocalRank numbers the processes of this machine, from 0 to LocalSize-1.
	LocalRank, LocalSize int
	// Source says where the ranks come from, for messages.
	Source Source
	// RunID is the launcher's name for the job; it may be empty. Restart counts how often the
	// launcher has started the ranks again. Both keep the keys of one attempt from another's.
	RunID   string
	Restart int
	// Route is the way to the store.
	Route Route
	// Late, if set, is called in Connect with the ranks that have not come yet, in ascending order,
	// and how long this rank has waited. It returns after what time it is called again, or a negative
	// time if it is not. It is first called with no ranks and no time. It is called on one goroutine
	// at a time, and not after Connect has returned.
	Late func(missing []int, waited time.Duration) time.Duration
	// LateToLeave is called in the same way while the rank that serves the store waits for others to
	// leave, with the ranks of this world that are still there.
	LateToLeave func(missing []int, waited time.Duration) time.Duration
}

// Source is where ranks come from.
type Source string

// The sources, in the order in which Discover asks them.
const (
	SourceOptions  Source = "options"
	SourceTorchrun Source = "torchrun"
	SourceOpenMPI  Source = "Open MPI"
	SourceMPICH    Source = "MPICH"
	SourceSlurm    Source = "Slurm"
	SourceAlone    Source = "one process"
	// SourceLaunch is a launcher of symmem. Its ranks have the variables of torchrun.
	SourceLaunch Source = "symmem launch"
)

// LaunchStore is the prefix of the addresses of stores that symmem launch serves.
const LaunchStore = unixScheme + "@symmem-run-"

// Route is the way to the store.
type Route struct {
	Kind RouteKind
	// Endpoint is where the store is, for RouteJoin and RouteServe.
	Endpoint Endpoint
	// FD is the descriptor of the process manager, for RoutePMI. It stays the caller's.
	FD int
}

// RouteKind is who serves the store.
type RouteKind int

const (
	// RouteLocal is a store inside this process, which is alone.
	RouteLocal RouteKind = iota
	// RouteJoin is a store that somebody else serves: a launcher, or PyTorch.
	RouteJoin
	// RouteServe is a store that rank 0 serves at an endpoint that all ranks know.
	RouteServe
	// RoutePMI is a store that rank 0 serves on a socket of random name, which the ranks learn
	// from MPICH's process manager.
	RoutePMI
)

// String names the kind for messages.
func (k RouteKind) String() string {
	switch k {
	case RouteLocal:
		return "in this process"
	case RouteJoin:
		return "served by the launcher"
	case RouteServe:
		return "served by rank 0"
	case RoutePMI:
		return "served by rank 0, found by PMI"
	}
	return fmt.Sprintf("route %d", int(k))
}

// Options describe the ranks and override the environment. The zero value leaves everything to the
// environment.
type Options struct {
	// Size is the number of ranks; 0 means that the ranks come from the environment, and then
	// Rank, LocalRank and LocalSize must be 0 too.
	Rank, Size int
	// LocalSize 0 means that all ranks are on this machine, with LocalRank equal to Rank.
	LocalRank, LocalSize int
	// Address is where rank 0 serves the store: "host:port", which requires a Token, or
	// "unix:@name". Empty leaves it to the environment.
	Address string
	// Token goes before SYMMEM_TOKEN.
	Token Token
}

// Variable is one variable of the environment as Discover saw it.
type Variable struct {
	Name string
	// Value is empty for a variable that is absent, too.
	Value string
}

// EnvironmentError is an environment from which the ranks, or the way to the store, cannot be
// told.
type EnvironmentError struct {
	// Source is the family of variables.
	Source Source
	// Variables are those that were looked at.
	Variables []Variable
	// Reason says what is wrong and what would help.
	Reason string
}

// Error lists every variable that was looked at. Tokens are not among them.
func (e *EnvironmentError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "finding this rank by %s: %s (", e.Source, e.Reason)
	for i, v := range e.Variables {
		if i > 0 {
			b.WriteString(", ")
		}
		if v.Value != "" {
			fmt.Fprintf(&b, "%s=%q", v.Name, v.Value)
		} else {
			fmt.Fprintf(&b, "%s is not set", v.Name)
		}
	}
	b.WriteString(")")
	return b.String()
}

// maxSize is far above any job, and keeps sums of ranks from overflowing.
const maxSize = 1 << 20

// problem says what is impossible about the ranks, or nothing.
func (w *World) problem() string {
	switch {
	case w.Size < 1 || w.Size > maxSize:
		return fmt.Sprintf("the size %d is not between 1 and %d", w.Size, maxSize)
	case w.Rank < 0 || w.Rank >= w.Size:
		return fmt.Sprintf("rank %d is not below the size %d", w.Rank, w.Size)
	case w.LocalSize < 1 || w.LocalSize > w.Size:
		return fmt.Sprintf("the local size %d is not between 1 and the size %d",
			w.LocalSize, w.Size)
	case w.LocalRank < 0 || w.LocalRank >= w.LocalSize:
		return fmt.Sprintf("local rank %d is not below the local size %d",
			w.LocalRank, w.LocalSize)
	}
	return ""
}
