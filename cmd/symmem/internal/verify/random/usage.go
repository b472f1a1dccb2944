package random

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"symmem/driver/nccl"
	"symmem/internal/cuda"
)

// usage holds how much of each resource the process uses.
type usage [kindCount]int64

type resourceKind int

const (
	goroutines  resourceKind = iota
	descriptors              // open file descriptors
	mappings                 // shared memory mappings, such as the segments of pools
	poolBytes                // memory that this rank's pools have mapped
	deviceBytes              // GPU memory that all processes use; 0 on the host backend
	kindCount
)

var kindNames = [kindCount]string{
	"goroutines", "file descriptors", "shared mappings", "bytes in pools", "bytes of device memory",
}

// tolerances returns how much each resource's usage may grow after the warm-up (the first rounds).
// CUDA and NCCL can open files and load kernels later.
func (r *runner) tolerances() usage {
	if r.backend() != "nccl" {
		return usage{}
	}

	env := r.environments[0] // all environments have the same ranks and machines
	ranks, machines := env.rt.Size(), env.machines()
	allowed := usage{descriptors: 16, mappings: 16, deviceBytes: 64 << 20}
	if r.config.SharedGPUs {
		// Usage includes the GPU's other ranks: on an H100, up to 204 MB for each of 8 ranks.
		const bytesPerRank = 256 << 20
		allowed[deviceBytes] = int64(ranks) * bytesPerRank
	}

	if machines > 1 {
		// A rank may connect late to its peers, the other ranks on its machine.
		maxPeers := ranks - machines // if each other machine has one rank
		const goroutinesPerConnection = 2
		allowed[goroutines] = int64(goroutinesPerConnection * maxPeers * len(r.environments))
	}

	return allowed
}

func (r *runner) measure() (usage, error) {
	var u usage
	runtime.GC() // finalizers release resources of unreachable values
	u[goroutines] = int64(runtime.NumGoroutine())
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return u, fmt.Errorf("counting file descriptors: %w", err)
	}

	u[descriptors] = int64(len(open))
	u[mappings], err = countSharedMappings()
	if err != nil {
		return u, fmt.Errorf("counting mappings: %w", err)
	}

	for _, env := range r.environments {
		u[poolBytes] += env.mappedBytes()
	}

	if r.backend() != "nccl" {
		return u, nil
	}

	err = nccl.Current(r.rank.LocalRank, func(gpu *cuda.Driver) error {
		free, total, err := gpu.MemGetInfo()
		u[deviceBytes] = total - free
		return err
	})
	return u, err
}

// countSharedMappings counts shared memory mappings. Stacks and the heap are private mappings.
func countSharedMappings() (count int64, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}

	for line := range strings.Lines(string(text)) {
		// The second field, permissions, ends with s (shared) or p (private):
		// 7f31c8000000-7f31c8200000 rw-s 00000000 00:01 2077 /memfd:segment (deleted)
		fields := strings.Fields(line)
		isShared := len(fields) > 1 && strings.HasSuffix(fields[1], "s")
		if isShared {
			count++
		}
	}

	return count, nil
}

const (
	releaseTimeout = 20 * time.Second
	releasePoll    = 20 * time.Millisecond // between two measurements
)

// measureUntilReleased repeats measure until no resource leaks, or until releaseTimeout.
// Communicators release their resources in the background.
func (r *runner) measureUntilReleased(ctx context.Context) (usage, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	ticker := time.NewTicker(releasePoll)
	defer ticker.Stop()
	for {
		u, err := r.measure()
		if err != nil || !r.hasLeaks(u) {
			return u, err
		}

		select {
		case <-ticker.C:
		case <-ctx.Done():
			return u, nil
		}
	}
}

// hasLeaks compares this rank's usage u with the usage after the warm-up.
func (r *runner) hasLeaks(u usage) bool {
	const anyRank = 0 // Leaked ignores the rank
	resources := r.compareResources(anyRank, r.warmUsage, u)
	return slices.ContainsFunc(resources, Resource.Leaked)
}

func (r *runner) compareResources(rank int, start, end usage) []Resource {
	tolerances := r.tolerances()
	var all []Resource
	for kind, name := range kindNames {
		all = append(all, Resource{
			Name: name, Rank: rank, Start: start[kind], End: end[kind], Tolerance: tolerances[kind],
		})
	}

	return all
}

// Resource compares a rank's usage of one resource after the warm-up and at the end of a run.
type Resource struct {
	Name      string `json:"name"`
	Rank      int    `json:"rank"`
	Start     int64  `json:"start"` // after the warm-up
	End       int64  `json:"end"`
	Tolerance int64  `json:"tolerance"` // permitted growth
}

// Leaked reports whether the growth exceeds the tolerance.
func (r Resource) Leaked() bool { return r.End > r.Start+r.Tolerance }

func (r Resource) String() string {
	verdict := "released"
	if r.Leaked() {
		verdict = "LEAKED"
	}

	return fmt.Sprintf("rank %d, %s: %d at the start, %d at the end, tolerance %d: %s", r.Rank, r.Name,
		r.Start, r.End, r.Tolerance, verdict)
}
