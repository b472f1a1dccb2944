package rendezvous

import (
	"fmt"
	"strings"
	"time"
)

// World describes a job and the place of this process in it. Each process of the job is a rank. For
// example, if torchrun starts 2 ranks on each of 2 machines, the last one has Rank 3, Size 4,
// LocalRank 1 and LocalSize 2.
type World struct {
	// Rank is the number of this process, from 0. Size is the number of ranks.
	Rank, Size int
	// LocalRank and LocalSize count only the ranks of this machine.
	LocalRank, LocalSize int
	Source               Source // where the numbers above come from
	RunID                string // the launcher's name for the job; "" if there is none
	Restart              int    // number of restarts by the launcher
	Route                Route  // how to reach the store
	// ReportAbsent, if not nil, is called repeatedly while Connect waits for other ranks. absent
	// lists the missing ranks in ascending order. waited is the time since the first call, which
	// gets no ranks. The result is the time until the next call, or negative to end the calls.
	ReportAbsent func(absent []int, waited time.Duration) time.Duration
	// ReportConnected is like ReportAbsent, but is called while this rank serves the store and waits
	// for other ranks to leave. connected lists the ranks that have not left.
	ReportConnected func(connected []int, waited time.Duration) time.Duration
}

// Source identifies the origin of a rank number.
type Source string

// Discover tries these sources in order.
const (
	SourceOptions    Source = "options"
	SourceTorchrun   Source = "torchrun"
	SourceOpenMPI    Source = "Open MPI"
	SourceMPICH      Source = "MPICH"
	SourceSlurm      Source = "Slurm"
	SourceOneProcess Source = "one process"
)

// SourceLaunch replaces the source of the numbers if symmem launch serves the store.
const SourceLaunch Source = "symmem launch"

// LaunchStore is the address prefix of stores that symmem launch serves.
const LaunchStore = unixScheme + "@symmem-run-"

// Route describes how to reach the store.
type Route struct {
	Kind RouteKind
	// Endpoint is set for RouteJoin and RouteServe.
	Endpoint Endpoint
	// FD is set for RoutePMI. It is a socket to MPICH's process manager. Connect does not close it.
	FD int
}

// RouteKind identifies the process that serves the store.
type RouteKind int

const (
	// RouteLocal is a store inside this process, for a job with a single rank.
	RouteLocal RouteKind = iota
	// RouteJoin is a running store, such as the launcher's.
	RouteJoin
	// RouteServe is a store that rank 0 serves at an endpoint that all ranks know.
	RouteServe
	// RoutePMI is a store that rank 0 serves on a Unix socket. The other ranks receive its address
	// from MPICH's process manager, over the PMI protocol.
	RoutePMI
)

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

// Options overrides the environment variables. Its zero value overrides nothing.
type Options struct {
	// If all four numbers are 0, the environment determines them. Otherwise, if LocalRank and
	// LocalSize are 0, all ranks run on this machine.
	Rank, Size           int
	LocalRank, LocalSize int
	// Rank 0 serves the store at Address. A TCP address requires a Token. If Address is empty, the
	// environment determines the route.
	Address string
	// Token overrides SYMMEM_TOKEN.
	Token Token
}

// Variable is an environment variable that Discover has read.
type Variable struct {
	Name  string
	Value string // "" if the variable is empty or not set
}

// EnvironmentError means that environment variables are invalid or missing, so that the rank or the
// route to the store is unknown.
type EnvironmentError struct {
	Source    Source
	Variables []Variable
	Reason    string
}

// Error returns a text such as "finding this rank by torchrun: REASON (RANK="0", WORLD_SIZE is not
// set)".
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

// maxWorldSize is the maximum number of ranks. A larger number is probably a typo.
const maxWorldSize = 1 << 20

// describeProblem describes an invalid Rank, Size, LocalRank or LocalSize. It returns "" if all of
// them are valid.
func (w *World) describeProblem() string {
	switch {
	case w.Size < 1 || w.Size > maxWorldSize:
		return fmt.Sprintf("the size %d is not between 1 and %d", w.Size, maxWorldSize)
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
